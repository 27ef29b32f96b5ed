#!/usr/bin/env bash
# Installs what the project needs and is missing, on Debian 12 or Ubuntu 24.04: apt packages, Python tools into .venv.
# Nothing missing: no network, no root, done at once.   tools/setup.sh [--dev] [--data] [--cuda] [--torch]
#   --dev    adds what .ci/run checks with: the formatter, into .venv, and clang with its sanitizers for tools/fuzz.sh
#   --data   adds the tokenizer of tools/prepare_data.sh, as .venv-data: 50 MB to download
#   --cuda   adds what the preset cuda takes from PyPI into .venv; the CUDA toolkit has to be there already
#   --torch  adds .venv-torch for tools/compare_torch.sh: 3 GB to download, 6 GB on disk
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: error: %s\n' "$*" >&2; exit 1; }

# Commands that any installation may provide, as command=package; and packages that nothing else can stand for.
commands=("g++=g++" ninja=ninja-build pkg-config=pkg-config git=git python3=python3 gzip=gzip bible=bible-kjv)
packages=(libdnnl-dev libopenblas-dev libspdlog-dev libyaml-cpp-dev nlohmann-json3-dev libcli11-dev libgtest-dev
          ca-certificates bible-kjv-text)

installed() { [ "$(dpkg-query -W -f='${db:Status-Abbrev}' "$1" 2>/dev/null)" = "ii " ]; }

has_cmake() {  # 3.25 or newer
  command -v cmake >/dev/null &&
    printf '3.25\n%s\n' "$(cmake --version | sed -n '1s/.* //p')" | sort -V -C
}

missing_packages() {
  local entry
  for entry in "${commands[@]}"; do
    command -v "${entry%%=*}" >/dev/null || echo "${entry#*=}"
  done
  has_cmake || echo cmake
  python3 -c 'import ensurepip, venv' 2>/dev/null || echo python3-venv
  for entry in "${packages[@]}"; do installed "$entry" || echo "$entry"; done
}

check_system() {
  local name=unknown id=unknown version=unknown
  if [ -r /etc/os-release ]; then
    # shellcheck source=/dev/null
    { read -r name; read -r id version; } < <(. /etc/os-release; echo "$PRETTY_NAME"; echo "$ID ${VERSION_ID:-}")
  fi
  case "$id $version" in
    "debian 12" | "ubuntu 24.04") ;;
    *) fail "found $name; packages can be installed on Debian 12 and Ubuntu 24.04 only. Missing here: $*" ;;
  esac
}

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

# apt-get as root, with the proxies and certificates of this environment (sudo would drop them).
apt_get() {
  local keep=(DEBIAN_FRONTEND=noninteractive) name
  for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY SSL_CERT_FILE; do
    [ -z "${!name:-}" ] || keep+=("$name=${!name}")
  done
  as_root env "${keep[@]}" apt-get "$@"
}

# Runs a command with its output kept back, and shows the output when it fails.
quietly() {
  local log
  log=$(mktemp)
  if ! "$@" >"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    fail "failed: $*"
  fi
  rm -f "$log"
}

without_candidate() {
  local package
  for package in "$@"; do
    grep -q '^  Candidate: [^(]' <<<"$(LC_ALL=C apt-cache policy "$package")" || echo "$package"
  done
}

# Ubuntu keeps most of what is needed in "universe", which small images may leave out of their package sources.
enable_universe() {
  local file=/etc/apt/sources.list edit='/^deb .*main/ { /universe/! s/ main/ main universe/ }'
  if [ -e /etc/apt/sources.list.d/ubuntu.sources ]; then
    file=/etc/apt/sources.list.d/ubuntu.sources
    edit='/^Components:/ { /universe/! s/$/ universe/ }'
  fi
  [ -e "$file" ] || fail "no $file to add Ubuntu's component 'universe' to; enable it and call again"
  say "adding Ubuntu's component 'universe' to $file"
  as_root sed -i "$edit" "$file"
}

install_packages() {
  check_system "$@"
  [ "$(id -u)" = 0 ] || command -v sudo >/dev/null ||
    fail "this is neither root nor is sudo there, and these packages are missing: $*"
  say "installing with apt: $*"
  quietly apt_get update
  local absent
  absent=$(without_candidate "$@")
  if [ -n "$absent" ] && grep -q '^ID=ubuntu' /etc/os-release; then
    enable_universe
    quietly apt_get update
    absent=$(without_candidate "$@")
  fi
  [ -z "$absent" ] || fail "the package sources of this system do not have: $(tr '\n' ' ' <<<"$absent")"
  quietly apt_get install --yes --no-install-recommends "$@"
}

# A virtual environment holds what its requirements file says; the copy inside it says for which one it was made.
python_tools() {  # VENV REQUIREMENTS [PIP'S OPTION...]
  local venv=$1 requirements=$2
  shift 2
  ! cmp -s "$requirements" "$venv/${requirements##*/}" || return 0
  say "installing into $venv what $requirements names"
  [ -x "$venv/bin/pip" ] || { rm -rf "$venv"; quietly python3 -m venv "$venv"; }
  quietly "$venv/bin/pip" install --disable-pip-version-check --no-input "$@" --requirement "$requirements"
  cp "$requirements" "$venv/"
}

# The toolkit is neither Debian's nor pip's to give. Of pip's packages only headers and cuDNN itself are wanted, not
# what they name for Python's use (--no-deps).
cuda_tools() {
  local nvcc include version
  nvcc=$(command -v nvcc) || fail "no nvcc in PATH: install NVIDIA's CUDA toolkit, 12.8 or newer" \
    "(package cuda-toolkit-13-0 of NVIDIA's package source for this system; the distribution's own is too old)," \
    "and add its bin to PATH, usually /usr/local/cuda/bin"
  version=$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
  printf '12.8\n%s\n' "$version" | sort -V -C || fail "$nvcc is of CUDA $version; 12.8 or newer is needed"
  python_tools .venv tools/requirements-cuda.txt --no-deps
  for include in "$(dirname "$(dirname "$(realpath "$nvcc")")")"/include /usr/include /usr/include/x86_64-linux-gnu; do
    [ ! -e "$include/cudnn.h" ] || return 0
  done
  [ "${version%%.*}" = 13 ] || fail "no cudnn.h here: install cuDNN 9 for CUDA $version (package cudnn9-cuda-12)"
  python_tools .venv tools/requirements-cudnn.txt --no-deps
}

dev=0 data=0 cuda=0 torch=0
for option in "$@"; do
  case $option in
    --dev) dev=1 ;;
    --data) data=1 ;;
    --cuda) cuda=1 ;;
    --torch) torch=1 ;;
    *) fail "unknown option $option; usage: tools/setup.sh [--dev] [--data] [--cuda] [--torch]" ;;
  esac
done

[ $dev = 0 ] || packages+=(clang libclang-rt-dev libomp-dev)
mapfile -t missing < <(missing_packages)
[ ${#missing[@]} = 0 ] || install_packages "${missing[@]}"
python_tools .venv tools/requirements.txt
[ $dev = 0 ] || python_tools .venv tools/requirements-dev.txt
[ $data = 0 ] || python_tools .venv-data tools/requirements-data.txt
[ $cuda = 0 ] || cuda_tools
[ $torch = 0 ] || python_tools .venv-torch tools/compare/requirements.txt
say "ready"
