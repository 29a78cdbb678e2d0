#!/usr/bin/env bash
# Builds for GPUs, checks everything on the GPU of this machine, and writes one table.
#
#   scripts/bench/gpu_check.sh                  builds build-gpu/ with CUDA, and checks
#   scripts/bench/gpu_check.sh --build=FOLDER   checks what is built there already
#   scripts/bench/gpu_check.sh --pack=FOLDER    builds, and makes a FOLDER that runs on a machine with nothing but a GPU's driver,
#                                               bash and python3: copy it there and run FOLDER/check
#
# Other options go to scripts/bench/gpu_check.py: --quick, --speed, --llmc=PROGRAM and so on. The table is also written to the build folder, as
# gpu_check.txt, and all figures of the speed, as gpu_speed.json. Those of another machine come into docs/performance.md by
#
#   scripts/bench/gpu_check.sh --build=FOLDER --figures=FOLDER/gpu_speed.json --write
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../lib/words.sh"
CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")/../.."

build='' pack='' options=()
for option in "$@"; do
  case $option in
    --build=*) build=$(realpath "${option#*=}") ;;
    --pack=*) pack=$(realpath -m "${option#*=}") ;;
    *) options+=("$option") ;;
  esac
done

# A wrong option is refused before anything is built.
if [[ $pack ]] && ((${#options[@]})); then refuse "${options[*]} is for a check, and --pack only builds." "Give it to FOLDER/check."; fi
PYTHONPATH=scripts/bench python3 -c 'import gpu_check; gpu_check.run_script(lambda words: not gpu_check.parse(words))' "${build:-build-gpu}" "${options[@]}"

# Says what is needed, where something is missing.
missing=()
need() { command -v "$1" >/dev/null || missing+=("$1"); }
if [[ -z $build ]]; then
  need cmake; need c++; need mpirun; need python3; need ninja
  command -v nvcc >/dev/null || [[ -x ${CUDA_HOME:-/usr/local/cuda}/bin/nvcc ]] || missing+=(nvcc)
  if ((${#missing[@]})); then
    refuse "${missing[*]} not found. Building for GPUs needs the CUDA toolkit 12.4 or newer with cuBLAS and NCCL, and what scripts/setup.sh --how lists." \
      "Or build elsewhere: scripts/bench/gpu_check.sh --pack=FOLDER, and copy FOLDER here."
  fi
  build=$PWD/build-gpu
  native=ON
  [[ -z $pack ]] || native=OFF  # the other machine's processor may be another
  cmake --preset gpu -DRANKWISE_NATIVE=$native >/dev/null
  cmake --build --preset gpu --target gpu_tests
fi

if [[ -z $pack ]]; then
  # shellcheck source=scripts/mpi_environment.sh
  source scripts/mpi_environment.sh
  exec python3 scripts/bench/gpu_check.py "$build" "${options[@]}"
fi

# ---- Pack: programs, and every library of theirs that is not the system's or the driver's ------------------------------

mkdir -p "$pack"/{build/lessons,build/data,build/tests,lib,scripts/{bench,pytorch,lib},tests/lessons}
cp "$build"/lessons/* "$pack/build/lessons/"
cp "$build/data/prepare" "$pack/build/data/"
find "$build/tests" -maxdepth 1 -type f -perm -u+x -exec cp -t "$pack/build/tests" {} +
cp "$build/gpu_tests.txt" "$pack/build/"
cp scripts/bench/{gpu_check,gpu_speed_tables,bench_tables,bench_peers}.py "$pack/scripts/bench/"
cp scripts/pytorch/torch_{speed,gpt2}.py "$pack/scripts/pytorch/"
cp scripts/lib/{documents,whole_file}.py "$pack/scripts/lib/"
cp scripts/mpi_environment.sh "$pack/scripts/"
cp tests/lessons/{test_gpus,test_gpu_digests,test_gpu_layouts,gpu_case,program_case}.py "$pack/tests/lessons/"

libraries_of() { ldd "$@" 2>/dev/null | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' | sort -u; }
system='/(ld-linux[^/]*|libc|libm|libdl|libpthread|librt|libcuda|libnvidia-ml)\.so'
mpi=$(dirname "$(dirname "$(readlink -f "$(command -v mpirun)")")")
plugins=$(ompi_info --path libdir --parsable | sed -n 's/^path:libdir://p')
cp -rL "$plugins" "$pack/openmpi-lib"
mkdir -p "$pack/openmpi/bin" "$pack/openmpi/share"
cp -L "$(command -v orted)" "$(readlink -f "$(command -v mpirun)")" "$pack/openmpi/bin/"
ln -sf "$(basename "$(readlink -f "$(command -v mpirun)")")" "$pack/openmpi/bin/mpirun"
cp -rL "$mpi/share/openmpi" "$pack/openmpi/share/" 2>/dev/null || true
pmix=$(dirname "$(ldconfig -p | sed -n 's/.* => \(.*libpmix\.so.*\)/\1/p' | head -n 1)")
[[ -d $pmix/pmix2/lib/pmix ]] && cp -rL "$pmix/pmix2/lib/pmix" "$pack/pmix"
mapfile -t files < <(libraries_of "$pack"/build/*/* "$pack"/openmpi/bin/* "$pack"/openmpi-lib/openmpi3/*.so "$pack"/pmix/*.so |
                     grep -vE "$system")
cp -L "${files[@]}" "$pack/lib/"

cat > "$pack/check" <<'TEXT'
#!/usr/bin/env bash
# Checks the programs of this folder on the GPU of this machine; options as for scripts/bench/gpu_check.py.
here=$(CDPATH='' cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export OUTSIDE_LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}  # for programs that are not of this folder
export LD_LIBRARY_PATH=$here/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} PATH=$here/openmpi/bin:$PATH
export OPAL_PREFIX=$here/openmpi OPAL_LIBDIR=$here/openmpi-lib OMPI_MCA_mca_base_component_path=$here/openmpi-lib/openmpi3
[[ -d $here/pmix ]] && export PMIX_PKGLIBDIR=$here/pmix
source "$here/scripts/mpi_environment.sh"
exec python3 "$here/scripts/bench/gpu_check.py" "$here/build" "$@"
TEXT
chmod +x "$pack/check"
echo "$(shown "$pack") is packed: $(du -sh "$pack" | cut -f 1). Copy it to the machine with the GPU and run FOLDER/check there."
