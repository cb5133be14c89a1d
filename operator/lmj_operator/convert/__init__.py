"""Jobs of other operators as LiveMigrationJobs: pure functions from parsed documents to parsed documents."""
