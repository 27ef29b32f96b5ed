#!/usr/bin/env bash
# Fetches the source of the Linux kernel from the package sources of this Debian or Ubuntu into data/, unpacks its text
# files and prints the directory: data/linux-source-VERSION. Fetched and unpacked once.
# The kernel is under the GPL 2; nothing of it is part of this project.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'fetch_kernel: %s\n' "$*" >&2; }
fail() { printf 'fetch_kernel: error: %s\n' "$*" >&2; exit 1; }

mkdir -p data
shopt -s nullglob
found=(data/linux-source-*/.complete)
if [ ${#found[@]} -gt 0 ]; then
  dirname "${found[0]}"
  exit 0
fi

packages=(data/linux-source-*.deb)
if [ ${#packages[@]} = 0 ]; then
  command -v apt-get >/dev/null || fail "no apt-get here; put a linux-source-*.deb of Debian or Ubuntu into data/"
  # The package linux-source depends on the one of this system's kernel: linux-source-6.1 on Debian 12.
  name=$(LC_ALL=C apt-cache depends linux-source 2>/dev/null |
    awk '$1 == "Depends:" && $2 ~ /^linux-source-/ && !found++ { print $2 }')
  [ -n "$name" ] || fail "apt knows no package linux-source; 'apt-get update' fetches the lists (as root)"
  say "downloading $name, about 140 MB"
  unfinished=$(mktemp -d data/fetch.XXXXXX)
  trap 'rm -rf "$unfinished"' EXIT
  (cd "$unfinished" && apt-get download "$name" >&2)
  mv "$unfinished"/linux-source-*.deb data/
  packages=(data/linux-source-*.deb)
fi

package=${packages[0]}
name=$(basename "$package" .deb)
directory=data/${name%_all}
say "unpacking $package, $(sha256sum "$package" | cut -d' ' -f1)"
rm -rf "$directory.unfinished"
mkdir "$directory.unfinished"
dpkg -x "$package" "$directory.unfinished/package"
python3 - "$directory.unfinished" <<'PYTHON'
# Streams the archive inside the package: Python reads xz and bzip2 itself. Only the text that prepare_data takes.
import pathlib, sys, tarfile
sys.dont_write_bytecode = True
sys.path.insert(0, "tools")
from prepare_data import MAX_FILE_BYTES, is_text_name
target = pathlib.Path(sys.argv[1])
archive = next(p for p in sorted(target.glob("package/usr/src/**/*.tar.*")) if p.is_file() and not p.is_symlink())
with tarfile.open(archive, "r|*") as tar:
    for member in tar:
        path = pathlib.PurePosixPath(member.name)
        inside = pathlib.PurePosixPath(*path.parts[1:])  # without linux-source-VERSION/
        if member.isreg() and 0 < member.size <= MAX_FILE_BYTES and is_text_name(path.name) and ".." not in path.parts:
            out = target / inside
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_bytes(tar.extractfile(member).read())
PYTHON
rm -rf "$directory.unfinished/package"
touch "$directory.unfinished/.complete"
mv "$directory.unfinished" "$directory"
echo "$directory"
