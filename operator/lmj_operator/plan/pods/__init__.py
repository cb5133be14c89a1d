"""Which pod and which worker each rank is to have; standbys and followers."""
