"""``lmj upload``, ``lmj download`` and ``lmj shell``: files of a PersistentVolumeClaim."""
