"""The version of jobs that the CRD serves, generated once."""

from typing import Any

from lmj_api.schema import crd

VERSION: dict[str, Any] = crd()["spec"]["versions"][0]
SCHEMA: dict[str, Any] = VERSION["schema"]["openAPIV3Schema"]
