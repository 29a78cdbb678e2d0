#!/usr/bin/env bash
# Climbs the ladder: builds, runs the lessons on the embedded data, prints one table, and draws it as build/ladder/ladder.svg.
# build/ladder/ladder.html has the first runs of all lessons side by side, for a browser.
#
#   scripts/ladder.sh [--ranks=N] [--lessons=NN,NN,...] [--wide] [OPTION OF THE LESSONS]...
#   scripts/ladder.sh --ranks=4 --model=mini --steps=3
#
# Each lesson runs twice. The first run, with the options given here (20 steps of the nano model unless told otherwise),
# shows loss, time, memory, traffic and checks. Without options it also shows the deviation from exact arithmetic after
# 10 steps (--compare=10), since the bounds are claimed for nano with default options. The second, 5 steps of nano in
# exact arithmetic, shows the digest: the same parameters to the last bit, whatever the lesson.
# Lessons 00 and 02 train nothing: they run once, without options. Lesson 02 shows what it sent, both show their checks. Lesson
# 17 plans, and has no row.
# A lesson runs on 4 ranks; lesson 01, which is about one device, on one; lesson 03 on 1, 2 and 4, one row each. With
# --ranks=N there is one row a lesson, on N ranks. The four heads of nano can be dealt out to four ranks at most, so on more
# of them lesson 08 has replicas. Its four blocks make four stages at most, so lessons 09 and 11 do without the others. Lesson
# 10 halves every layer and the pipeline, and the rest are replicas. Lesson 12 trains another model, so it runs on 1 and 4
# ranks to compare its digests; it is left out if it cannot run with the options, as with --model=gpt2. Lesson 15, whose model has
# experts, runs on 1 and 4 ranks too. With --lessons only those lessons run. The table fits 120 columns; with --wide it also has
# speed, both deviations and each category of memory, as the reports in build/ladder have.
# Status 1: a check failed or a run broke; 2: a wrong option, or another ladder climbs in this clone.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/words.sh"
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/.."

ranks=
wide=()
chosen=()
options=()
steps=(--steps=20)
before=
for option in "$@"; do
  case $option in
    --ranks=*)
      ranks=${option#--ranks=}
      check_ranks --ranks= "$ranks"
      ;;
    --lessons=*)
      IFS=, read -ra chosen <<<"${option#--lessons=},"
      for number in "${chosen[@]}"; do
        if ! compgen -G "lessons/${number}_*" >/dev/null || ! [[ $number =~ ^[0-9][0-9]$ ]]; then
          refuse "$option names lesson '$number', which does not exist." \
            "Use numbers of $(CDPATH='' cd lessons && echo [0-9][0-9]_*): --lessons=03,04"
        fi
        if [[ $number == 17 ]]; then
          refuse "$option names lesson 17, which plans and has no row in the table." "Use other lessons: --lessons=03,04"
        fi
      done
      ;;
    --wide) wide=(--wide) ;;
    *)
      name=${option%%=*}
      if [[ $name == --steps || $name == --epochs ]]; then steps=(); fi
      # A word that is no option may be the value of the one before it.
      if ! { [[ $option == --* ]] && grep -rsqF --include='*.cpp' "\"${name#--}\"" common data gpt2 lessons; } &&
        [[ $option == --* || $before != --* || $before == *=* ]]; then
        refuse "no lesson has the option '$option'." "build/lessons/03_ddp --help lists those of lesson 03."
      fi
      options+=("$option")
      ;;
  esac
  before=$option
done
if ((${#options[@]} == 0)); then options=(--compare=10); fi

lessons=()
if ((${#chosen[@]})); then
  for number in "${chosen[@]}"; do lessons+=(lessons/"$number"_*/); done
else
  for folder in lessons/[0-9][0-9]_*/; do [[ $folder == lessons/17_* ]] || lessons+=("$folder"); done
fi
lessons=("${lessons[@]%/}")
lessons=("${lessons[@]#lessons/}")

# ranks_of LESSON: the numbers of ranks that it runs on.
ranks_of() {
  case $1 in
    01_*) echo 1 ;;
    03_*) echo "${ranks:-1 2 4}" ;;
    12_* | 15_*) echo "${ranks:-1 4}" ;;
    09_* | 11_*) echo "$((${ranks:-4} < 4 ? ${ranks:-4} : 4))" ;;
    *) echo "${ranks:-4}" ;;
  esac
}
runs=0
for lesson in "${lessons[@]}"; do
  read -ra on <<<"$(ranks_of "$lesson")"
  if [[ $lesson == 0[02]_* ]]; then runs=$((runs + ${#on[@]})); else runs=$((runs + 2 * ${#on[@]})); fi
done
about=
if [[ ${options[*]} == --compare=10 ]]; then about=", about $(((runs * 2 + 59) / 60)) min"; fi  # 2 s each, on two cores
echo "The ladder: builds what is not built yet, then makes $runs runs of ${#lessons[@]} lessons$about." >&2

scripts/setup.sh
# Two ladders in one clone would delete each other's reports, and take each other's time. The lock lasts
# until this process and all that it started have ended.
mkdir -p build
exec 9>>build/ladder.lock
if ! python3 scripts/lib/lock.py 9; then
  refuse "another ladder climbs in this clone, and both would write build/ladder." "Wait until it has ended, or use another clone."
fi
trap 'exit 130' INT  # mpirun ends on it too, but as if it were done
scripts/build.sh release "${lessons[@]}" prepare weights
source scripts/mpi_environment.sh

reports=build/ladder
rm -rf "$reports"
mkdir -p "$reports"

# run LESSON RANKS KIND OPTION...: one run, whose report is left in build/ladder/LESSON.npRANKS.KIND.json, and its status in .status.
# A failed check is reported in the table; a run that left no report is shown here; a wrong option ends the ladder, as it is wrong for
# all.
run() {
  local lesson=$1 np=$2 kind=$3 file=$reports/$1.np$2.$3 launcher=() status=0
  shift 3
  if [[ $lesson != 01_* ]]; then launcher=(mpirun -np "$np"); fi
  echo "Running lesson $lesson, np $np ($kind) ..." >&2
  for _ in 1 2; do  # run_program() of tests/lessons/program_case.py says why
    status=0
    "${launcher[@]}" "build/lessons/$lesson" "$@" --report="$file.json" >"$file.txt" 2>&1 </dev/null || status=$?
    if ! grep -q 'exiting improperly' "$file.txt"; then break; fi
  done
  if [[ ! -e $file.json ]]; then cat "$file.txt" >&2; fi
  echo "$status" >"$file.status"
  if ((status == 2)) && [[ $lesson == 12_* ]]; then
    echo "Lesson $lesson is left out: it cannot run with these options." >&2
    rm -f "$file".*
  elif ((status == 2)); then exit 2; fi
}

for lesson in "${lessons[@]}"; do
  read -ra on <<<"$(ranks_of "$lesson")"
  for np in "${on[@]}"; do
    layout=()
    if [[ $lesson == 08_* ]] && ((np > 4 && np % 4 == 0)); then layout=(--dp=$((np / 4))); fi
    if [[ $lesson == 0[02]_* ]]; then
      run "$lesson" "$np" messages
    else
      run "$lesson" "$np" fast "${steps[@]}" "${layout[@]}" "${options[@]}"
      run "$lesson" "$np" exact "${layout[@]}" --steps=5 --arithmetic=exact
    fi
  done
done

pages=("$reports"/*.fast.json)
if [[ -e ${pages[0]} ]]; then scripts/page/compare_runs.py "${pages[@]}" --output="$reports/ladder.html" >/dev/null; fi
scripts/plot/plot_ladder.py "$reports" "$reports/ladder.svg" >&2 || true  # the table says which runs broke
echo
scripts/plot/ladder_table.py "$reports" "${wide[@]}" || status=$?
if [[ -e $reports/ladder.html ]]; then echo "The runs side by side, for a browser: $reports/ladder.html" >&2; fi
exit "${status:-0}"
