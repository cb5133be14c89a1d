"""Files of a PersistentVolumeClaim, by a short-lived pod that mounts it: made with a person's rights, gone when the person is done."""
