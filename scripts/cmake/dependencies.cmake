# What Rankwise is built upon. All of it is installed beforehand (scripts/setup.sh); nothing is downloaded here.

include(CheckCXXCompilerFlag)
check_cxx_compiler_flag(-march=native RANKWISE_HAS_MARCH_NATIVE)

# How the fast kernels are compiled: they may contract a*b+c, and need no errno and no floating-point traps. Jump
# threading would evaluate a loop's body once more for the limits of an argument, instead of a minimum and a maximum.
set(RANKWISE_FAST_FLAGS -ffp-contract=fast -fno-math-errno -fno-trapping-math)
check_cxx_compiler_flag("-Werror -fno-thread-jumps" RANKWISE_HAS_THREAD_JUMPS)
if(RANKWISE_HAS_THREAD_JUMPS)
  list(APPEND RANKWISE_FAST_FLAGS -fno-thread-jumps)
endif()
check_cxx_compiler_flag("-Werror -mprefer-vector-width=512" RANKWISE_HAS_VECTOR_WIDTH)
if(RANKWISE_HAS_VECTOR_WIDTH)
  list(APPEND RANKWISE_FAST_FLAGS -mprefer-vector-width=512)  # where the processor has such vectors
endif()

# ---- Required: all that is missing is named in one sentence -----------------------------------------------------------

set(rankwise_missing "")

# rankwise_find("what it is called in the message" arguments of find_package...)
macro(rankwise_find called package)
  find_package(${package} ${ARGN} QUIET)
  if(NOT ${package}_FOUND)
    list(APPEND rankwise_missing "${called}")
  endif()
endmacro()

rankwise_find("MPI" MPI COMPONENTS C)
rankwise_find("OpenMP" OpenMP COMPONENTS CXX)
rankwise_find("HDF5" HDF5 COMPONENTS C)
rankwise_find("OpenSSL" OpenSSL COMPONENTS Crypto)
rankwise_find("fmt" fmt)
rankwise_find("nlohmann-json" nlohmann_json)
rankwise_find("NLopt" NLopt)
rankwise_find("Boost" Boost CONFIG)
find_path(RANKWISE_XXHASH_INCLUDE xxhash.h)
find_library(RANKWISE_XXHASH xxhash)
if(NOT RANKWISE_XXHASH OR NOT RANKWISE_XXHASH_INCLUDE)
  list(APPEND rankwise_missing "xxHash")
endif()
find_path(RANKWISE_PCRE2_INCLUDE pcre2.h)
find_library(RANKWISE_PCRE2 pcre2-8)
if(NOT RANKWISE_PCRE2 OR NOT RANKWISE_PCRE2_INCLUDE)
  list(APPEND rankwise_missing "PCRE2")
endif()
if(RANKWISE_TESTS)
  find_package(Catch2 3 QUIET)
  if(NOT Catch2_FOUND)
    rankwise_find("Catch2 version 2 or 3" Catch2 2)
  endif()
endif()

if(rankwise_missing)
  list(JOIN rankwise_missing ", " rankwise_missing)
  message(FATAL_ERROR "Not found: ${rankwise_missing}; scripts/setup.sh installs what is missing, "
                      "scripts/setup.sh --how says how to do it by hand.")
endif()

include(${CMAKE_CURRENT_LIST_DIR}/same_mpi.cmake)
rankwise_check_same_mpi("${MPI_C_LIBRARIES}" "${HDF5_C_LIBRARIES}")

# The module that finds HDF5 offers a target only since CMake 3.26 or so; this one is the same everywhere.
add_library(rankwise_hdf5 INTERFACE)
target_include_directories(rankwise_hdf5 SYSTEM INTERFACE ${HDF5_INCLUDE_DIRS})
target_link_libraries(rankwise_hdf5 INTERFACE ${HDF5_C_LIBRARIES})

# The digest of sealed files.
add_library(rankwise_xxhash INTERFACE)
target_include_directories(rankwise_xxhash SYSTEM INTERFACE ${RANKWISE_XXHASH_INCLUDE})
target_link_libraries(rankwise_xxhash INTERFACE ${RANKWISE_XXHASH})

# The regular expressions of the tokenizer.
add_library(rankwise_pcre2 INTERFACE)
target_include_directories(rankwise_pcre2 SYSTEM INTERFACE ${RANKWISE_PCRE2_INCLUDE})
target_link_libraries(rankwise_pcre2 INTERFACE ${RANKWISE_PCRE2})

# The matrix products of the fast kernels. oneDNN's are faster on the small matrices of a transformer and share them
# better among threads (docs/performance.md); OpenBLAS is what other processors than x86-64 have.
find_library(RANKWISE_OPENBLAS openblas)
find_library(RANKWISE_DNNL dnnl)
find_path(RANKWISE_OPENBLAS_INCLUDE openblas_config.h PATH_SUFFIXES openblas openblas-pthread openblas-openmp)
add_library(rankwise_gemm INTERFACE)
if(RANKWISE_DNNL AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(rankwise_gemm_by oneDNN)
  target_compile_definitions(rankwise_gemm INTERFACE RANKWISE_ONEDNN)
  target_link_libraries(rankwise_gemm INTERFACE ${RANKWISE_DNNL})
elseif(RANKWISE_OPENBLAS)
  set(rankwise_gemm_by OpenBLAS)
  target_link_libraries(rankwise_gemm INTERFACE ${RANKWISE_OPENBLAS})
else()
  message(FATAL_ERROR "Not found: oneDNN or OpenBLAS; scripts/setup.sh installs what is missing, "
                      "scripts/setup.sh --how says how to do it by hand.")
endif()

# ---- Optional: looked for and reported, never required ----------------------------------------------------------------

find_program(RANKWISE_CCACHE ccache)
find_program(RANKWISE_DOXYGEN doxygen)
# A Python that can make the site of the documentation; scripts/docs.sh looks for it in the same way.
set(RANKWISE_SITE_PYTHON "")
foreach(candidate /usr/bin/python3 python3)
  execute_process(COMMAND ${candidate} -c "import jinja2, markdown_it, mdit_py_plugins, pygments"
                  RESULT_VARIABLE status OUTPUT_QUIET ERROR_QUIET)
  if(status STREQUAL "0")
    set(RANKWISE_SITE_PYTHON ${candidate})
  endif()
endforeach()

# ccache keeps compiled files between builds. A precompiled header needs its leave to ignore two things that change
# nothing here: __TIME__, and macros that are defined before the header.
if(RANKWISE_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${RANKWISE_CCACHE})
endif()

# ---- What configuring says that it found ------------------------------------------------------------------------------

# rankwise_report("name" found): one line of the summary.
function(rankwise_report name found)
  if(found)
    message(STATUS "  ${name}: ${found}")
  else()
    message(STATUS "  ${name}: no")
  endif()
endfunction()

# rankwise_summary(): once it is known whether there are GPUs.
function(rankwise_summary)
  message(STATUS "Rankwise, ${CMAKE_BUILD_TYPE} build by ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}, "
                 "MPI ${MPI_C_VERSION}, HDF5 ${HDF5_VERSION}. Optional parts:")
  set(rankwise_gpu_kind ${RANKWISE_GPU})
  if(RANKWISE_GPU STREQUAL on)
    set(rankwise_gpu_kind "CUDA ${CUDAToolkit_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}, NCCL ${RANKWISE_NCCL}")
  endif()
  rankwise_report("GPUs        " "${rankwise_gpu_kind}")
  rankwise_report("products by " "${rankwise_gemm_by}")
  rankwise_report("OpenBLAS    " "${RANKWISE_OPENBLAS}")
  rankwise_report("oneDNN      " "${RANKWISE_DNNL}")
  rankwise_report("ccache      " "${RANKWISE_CCACHE}")
  rankwise_report("Doxygen     " "${RANKWISE_DOXYGEN}")
endfunction()
