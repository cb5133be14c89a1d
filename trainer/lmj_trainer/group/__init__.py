"""Who trains together: the ranks of a view, and how one of them reaches the others."""
