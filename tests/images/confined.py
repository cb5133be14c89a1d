"""How a container is run here: as a pod of the chart is, and with no network at all."""

OPTIONS = [
    *("--rm", "--read-only", "--user", "65532:65532", "--network", "none", "--cap-drop", "ALL"),
    *("--security-opt", "no-new-privileges", "--shm-size", "1g", "--tmpfs", "/tmp:mode=1777,size=1g"),
]
