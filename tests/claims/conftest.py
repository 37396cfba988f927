from tests.members.conftest import base, runtime

__all__ = ["base", "runtime"]
