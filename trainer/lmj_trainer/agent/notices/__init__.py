"""Whether the cloud is about to take this machine away: its metadata service is asked, without credentials."""
