#!/usr/bin/env bash
# setup.sh: what is missing is named and installed, and nothing else. Other commands stand in for those that look for packages
# and install them.
set -euo pipefail
setup=$(CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/scripts/setup.sh
scratch=$(mktemp -d)
printf -v quoted %q "$scratch"  # in the text of a command
trap 'rm -r "$scratch"' EXIT
wrong=0

stand_in() {
  printf '#!/usr/bin/env bash\n%s\n' "$2" >"$scratch/bin/$1"
  chmod +x "$scratch/bin/$1"
}

# machine USER_ID MANAGER: a path with the system's usual tools and one that installs; it writes down what it was asked for.
machine() {
  rm -rf "${scratch:?}/bin"
  mkdir "$scratch/bin"
  local tool
  for tool in awk bash cat comm dirname env fold mktemp paste rm sed sort tail xargs; do ln -s "$(command -v $tool)" "$scratch/bin/$tool"; done
  stand_in id "echo $1"
  stand_in "$2" "echo $2 \$* >>$quoted/installed"
  stand_in mpicc :
}

# expect STATUS SAID INSTALLED [OPTION]: the exit status, and patterns of what is said and of the manager's last command.
expect() {
  local status=0 said
  echo nothing >"$scratch/installed"
  said=$(env PATH="$scratch/bin" bash "$setup" "${@:4}" 2>&1) || status=$?
  # shellcheck disable=SC2053 # patterns
  if [[ $status != "$1" || $said != $2 || $(tail -n 1 "$scratch/installed") != $3 ]]; then
    printf 'FAILED: status %s instead of %s, or not "%s", or not "%s":\n%s\n' "$status" "$1" "$2" "$3" "$said"
    tail -n 1 "$scratch/installed"
    wrong=1
  fi
}

# The packages of a manager that --how lists, without those that are not wanted here.
listed() { "$setup" --how | sed -n "/^$1:/,/^\$/{/:/d; s/ /\n/g; p}" | grep -vx -e "$2" -e '' | sort -u; }

machine 0 apt-get
stand_in dpkg-query "sed 's/\$/ installed/' $quoted/have"
listed 'Debian, Ubuntu' 'catch2' >"$scratch/have"
expect 0 'Installing with apt-get: catch2' 'apt-get *install --no-install-recommends catch2'
listed 'Debian, Ubuntu' 'bubblewrap\|python3-tomli' >"$scratch/have"
expect 0 '' nothing
expect 0 'Installing with apt-get: bubblewrap python3-tomli' 'apt-get *install * bubblewrap python3-tomli' --grading
listed 'Debian, Ubuntu' 'libhdf5-dev' >"$scratch/have"
expect 0 '*: libhdf5-dev' 'apt-get *install * libhdf5-dev'
echo libhdf5-openmpi-dev >>"$scratch/have"
expect 0 '' nothing
listed 'Debian, Ubuntu' 'openmpi-bin' >"$scratch/have"
expect 0 '' nothing  # mpicc is not the system's
rm "$scratch/bin/mpicc"
expect 2 '*: openmpi-bin*mpicc is not on the path*' 'apt-get *install * openmpi-bin'
machine 0 apt-get
stand_in dpkg-query :
CONDA_PREFIX=$scratch expect 2 '*c++ is not on the path*' nothing
machine 1000 apt-get
stand_in dpkg-query :
expect 2 '*c++ is not on the path*sudo apt-get install*' nothing

machine 0 dnf
# shellcheck disable=SC2016 # the stand-in expands it
stand_in rpm 'for last; do :; done; [[ $last != fmt-devel ]]'
expect 0 'Installing with dnf: fmt-devel' 'dnf install -y * fmt-devel'
machine 0 pacman
stand_in pacman "if [[ \$1 == -T ]]; then echo fmt; exit 127; fi; echo pacman \$* >>$quoted/installed"
expect 0 'Installing with pacman: fmt' 'pacman -S * fmt'
machine 1000 brew
stand_in brew "if [[ \$1 == list ]]; then cat $quoted/have; else echo brew \$* >>$quoted/installed; fi"
listed macOS fmt >"$scratch/have"
expect 0 'Installing with brew: fmt' 'brew install fmt'

expect 2 '*does not take*' nothing --no-such-option
[ "$wrong" = 0 ] && echo "what is missing is installed, and nothing else"
exit "$wrong"
