#!/usr/bin/env bash
# diff.sh: what a lesson changes, section by section.
set -euo pipefail
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder"/scripts/{course,lib} "$folder/lessons"/{01_one,02_two,04_four,05_five}
cp scripts/course/diff.sh "$folder/scripts/course"
cp scripts/lib/words.sh "$folder/scripts/lib"

cat >"$folder/lessons/01_one/01_one.cpp" <<TEXT
// Builds on:    nothing

// ---- State ------------------------
int model = 1;      // the model

// ---- Old way ----------------------
void step() {}

// ---- Run --------------------------
int main()
{
  return model;
}
TEXT
cat >"$folder/lessons/02_two/02_two.cpp" <<TEXT
// Builds on:    lesson 01 (one)

// ---- State ------------------------
int model = 1;           // the model

// ---- Sums -------------------------
void sum() {}

// ---- Run --------------------------
int main()
{
  sum();
  return model;
}
TEXT
touch "$folder/lessons/02_two/buckets.cpp"
mkdir "$folder/lessons/parallel"
printf '| %s | [%s.hpp](zero/%s.hpp) | What it is |\n' 02 shards shards 04 units units >"$folder/lessons/parallel/README.md"

# program CLASS SUM: a lesson as a class.
program() {
  cat <<TEXT
class $1 {
 public:
  int train_step()
  {
    int loss = 0;

    for (int i = 0; i < 3; ++i)
      loss += i;
    return $2;
  }

  // ---- What the frame asks for ------
  int name = 1;
};
TEXT
}
program Four loss >"$folder/lessons/04_four/04_four.cpp"
{
  echo "// Builds on:    lesson 04 (four)"
  program Five "sum(loss)"
} >"$folder/lessons/05_five/05_five.cpp"

# expect STATUS LESSON TEXT: the output of the script on this lesson is the text.
expect() {
  local status=0 output
  output=$("$folder/scripts/course/diff.sh" "$2" 2>&1) || status=$?
  if ((status != $1)) || [[ $output != "$3" ]]; then
    echo "diff.sh $2: status $status, not $1, or another output:"
    diff <(echo "$output") <(echo "$3") || exit 1
    exit 1
  fi
}

expect 0 01 "Lesson 01 builds on no other lesson: there is nothing before it."
expect 2 03 "error: there is no lesson '03'.
       There are 01_one 02_two 04_four 05_five."
expect 0 02 "From lessons/01_one/01_one.cpp to lessons/02_two/02_two.cpp

==== Beginning ====

@@
-// Builds on:    nothing
+// Builds on:    lesson 01 (one)
 

==== State (the same) ====

==== Sums (new) ====

@@
+// ---- Sums -------------------------
+void sum() {}
+

==== Run ====

@@
 // ---- Run --------------------------
 int main()
 {
+  sum();
   return model;
 }

==== Old way (gone) ====

@@
-// ---- Old way ----------------------
-void step() {}
-

Beside it: lessons/02_two/buckets.cpp lessons/parallel/zero/shards.hpp"

expect 0 05 "From lessons/04_four/04_four.cpp to lessons/05_five/05_five.cpp

==== Beginning (new) ====

@@
+// Builds on:    lesson 04 (four)

==== The step ====

@@
-class Four {
+class Five {
  public:
 int train_step()
 {
@@ int train_step()
 
   for (int i = 0; i < 3; ++i)
     loss += i;
-  return loss;
+  return sum(loss);
 }
 

==== What the frame asks for (the same) ===="

coloured=$(COLOR=always "$folder/scripts/course/diff.sh" 02)
if [[ $coloured != *$'\e[32m+'* ]]; then
  echo "COLOR=always: no colours"
  exit 1
fi
