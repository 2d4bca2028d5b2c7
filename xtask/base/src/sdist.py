# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Puts parts of a package's source from pip's index into a directory.

Usage: sdist.py DIRECTORY NAME==VERSION PART... A part is a file or a directory of the source.

`pip download` builds a source to learn its dependencies, which takes CuPy half an hour. Here pip's own
parts find the archive, with pip's settings, and fetch it. Its hash is the index's.
"""

import hashlib
import io
import pathlib
import sys
import tarfile

from pip._internal.commands.download import DownloadCommand
from pip._vendor.packaging.specifiers import SpecifierSet


def archive(package: str) -> bytes:
    name, version = package.split("==")
    command = DownloadCommand("download", "")
    options, _ = command.parse_args(["--no-binary=:all:"])
    with command.main_context():
        session = command.get_default_session(options)
        finder = command._build_package_finder(options, session)
        found = finder.find_best_candidate(name, SpecifierSet(f"=={version}")).best_candidate
        if found is None:
            sys.exit(f"the index has no source of {package}")
        response = session.get(found.link.url_without_fragment)
        response.raise_for_status()
    if found.link.hash and hashlib.new(found.link.hash_name, response.content).hexdigest() != found.link.hash:
        sys.exit(f"the source of {package} has another hash than the index says")
    return response.content


def main() -> None:
    directory, package, *parts = sys.argv[1:]
    with tarfile.open(fileobj=io.BytesIO(archive(package))) as source:
        for member in source.getmembers():
            # The first is the archive's own directory.
            path = pathlib.PurePath(*pathlib.PurePath(member.name).parts[1:])
            if member.isfile() and path.parts and path.parts[0] in parts and ".." not in path.parts:
                to = pathlib.Path(directory, path)
                to.parent.mkdir(parents=True, exist_ok=True)
                to.write_bytes(source.extractfile(member).read())


if __name__ == "__main__":
    main()
