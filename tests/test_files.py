"""A file is replaced whole or not at all, even if others write it, and only if its path can be a file."""

import errno
import os
import threading
from pathlib import Path

import pytest

from gnvpro.files import regular_file, replacing
from gnvpro.training import checkpoint


def write(path, content):
    with replacing(path) as file:
        file.write(content)


def test_a_file_is_written_and_replaced_and_nothing_stays_beside_it(tmp_path):
    for content in (b"first", b"second"):
        write(tmp_path / "file", content)
        assert (tmp_path / "file").read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_failed_write_keeps_the_old_file(error, tmp_path):
    write(tmp_path / "file", b"old")

    def write_half():
        with replacing(tmp_path / "file") as file:
            file.write(b"half of the ne")
            raise error

    with pytest.raises(error):
        write_half()
    assert (tmp_path / "file").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_failed_write_names_the_file(tmp_path):
    with pytest.raises(OSError, match=r"No space left on device: '.*/file'"), replacing(tmp_path / "file"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_the_content_is_on_disk_before_it_takes_the_place(tmp_path, monkeypatch):
    calls = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: (calls.append("fsync"), fsync(descriptor)))
    monkeypatch.setattr(os, "replace", lambda source, target: (calls.append("replace"), replace(source, target)))
    write(tmp_path / "file", b"content")
    assert calls == ["fsync", "replace"]


@pytest.mark.parametrize("exists", [True, False], ids=["to a file", "to nothing yet"])
def test_a_symbolic_link_stays_one_and_its_target_is_written(exists, tmp_path):
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "target", tmp_path / "link"
    if exists:
        target.write_bytes(b"old")
    link.symlink_to(Path("folder") / "target")
    checkpoint.save(link, {"a": 1})
    assert link.is_symlink()
    assert not target.is_symlink()
    assert checkpoint.load(target) == {"a": 1}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="FIFOs are POSIX")
@pytest.mark.parametrize("linked", [False, True], ids=["itself", "through a link"])
def test_a_fifo_is_refused_and_not_replaced(linked, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    path = tmp_path / "link" if linked else fifo
    if linked:
        path.symlink_to(fifo)
    with pytest.raises(ValueError, match=rf"path='{path}' is a FIFO, a device or a socket; name an ordinary file"):
        checkpoint.save(path, {"a": 1})
    assert fifo.is_fifo()


def test_devices_and_directories_are_refused_by_the_name_of_the_argument(tmp_path):
    with pytest.raises(ValueError, match=rf"checkpoint='{os.devnull}' is a FIFO, a device"):
        regular_file(Path(os.devnull), "checkpoint")
    with pytest.raises(ValueError, match=r"path='.*' is a directory; name a file in it"):
        write(tmp_path, b"content")
    assert tmp_path.is_dir()


def test_threads_of_one_process_may_write_the_same_file(tmp_path):
    both_write, contents = threading.Barrier(2), (b"a" * 1000, b"b" * 1000)
    failures = []

    def write_slowly(content):
        try:
            with replacing(tmp_path / "file") as file:
                both_write.wait(timeout=10)
                file.write(content)
                both_write.wait(timeout=10)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write_slowly, args=[content]) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert (tmp_path / "file").read_bytes() in contents
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
