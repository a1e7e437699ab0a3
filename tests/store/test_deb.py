from __future__ import annotations

import pytest

from statecell.store.deb import deb_files
from statecell.store.errors import CorruptDownloadError
from tests.store.packages import ar, tar


def test_odd_members_do_not_shift_the_next() -> None:
    package = ar({"debian-binary": b"2.0", "data.tar.xz": tar({"./a": b"one", "./b": b"two"})})
    assert deb_files(package, ["./b", "./a"]) == [b"two", b"one"]


@pytest.mark.parametrize(
    "package",
    [
        b"not an archive",
        ar({"debian-binary": b"2.0\n"}),
        ar({"data.tar.xz": b"not tar"}),
        ar({"data.tar.xz": tar({})}),
    ],
)
def test_a_package_that_is_none_is_refused(package: bytes) -> None:
    with pytest.raises(CorruptDownloadError, match="fetch it again"):
        deb_files(package, ["./a"])
