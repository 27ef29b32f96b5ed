#!/usr/bin/env bash
# Writes data/bible.txt: the King James Bible of the packages bible-kjv and bible-kjv-text, 4.4 MB of ASCII.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

text=data/bible.txt
sha256=cd45f0c9cedab8e4439bd6486c8952c77cc8b0ecc5d1f6ae3513f2039f47229d  # of bible-kjv-text 4.38
[ ! -s $text ] || exit 0

command -v bible >/dev/null || { echo "fetch_text: error: no command 'bible'; tools/setup.sh installs it" >&2; exit 1; }
mkdir -p data
part=$(mktemp data/bible.XXXXXX)
trap 'rm -f "$part"' EXIT
bible -f 'gen1:1-rev22:21' >"$part"
size=$(stat -c %s "$part")
if [ "$size" -lt 4000000 ]; then
  echo "fetch_text: error: the text has $size bytes, about 4.4 million were expected" >&2
  exit 1
fi
if [ "$(sha256sum "$part" | cut -d' ' -f1)" != $sha256 ]; then
  echo "fetch_text: warning: $text ($size bytes) differs from the one the documented figures were measured on" >&2
fi
chmod 644 "$part"
mv "$part" $text
echo "fetch_text: wrote $text, $size bytes"
