# shellcheck shell=bash
# What a script does with the words that it was given. Each sources this at its beginning; if --help is among the words, it then
# prints the comment at its head and ends.

given=("$@")
script=${BASH_SOURCE[1]}
if [[ " $* " == *' --help '* ]]; then
  sed -n '2,/^[^#]/s/^#\( \|$\)//p' "$script"
  exit 0
fi

# shown TEXT: with ? for characters that a terminal obeys.
shown() {
  local text=${1//[![:print:]]/?}
  printf '%s' "${text//[$'\xd8\x9c\xe2\x80\x8e\xe2\x80\x8f\xe2\x80\xaa'-$'\xe2\x80\xae\xe2\x81\xa6'-$'\xe2\x81\xa9']/?}"
}

# refuse WHAT WHAT_TO_DO [STATUS]: the one message of a mistake; the status is 2 if none is named.
refuse() {
  printf 'error: %s\n       %s\n' "$(shown "$1")" "$(shown "$2")" >&2
  exit "${3:-2}"
}

# takes MOST [OPTION...]: refuses all options but these, and more than MOST other words.
takes() {
  local left=$1 word
  for word in ${given[@]+"${given[@]}"}; do
    if [[ $word != -* ]] && ((left > 0)); then
      left=$((left - 1))
    elif [[ $word != -* || " ${*:2} " != *" $word "* ]]; then
      refuse "${script##*/} does not take '$word'." "With --help it says what it takes."
    fi
  done
}

# check_ranks OPTION RANKS: refuses what is no number of ranks.
check_ranks() {
  [[ $2 =~ ^[1-9][0-9]{0,3}$ ]] || refuse "$1$2 is not a number of ranks." "Use a whole number, from 1 to 9999: ${1}4"
}
