# Of the build in which students' files are compiled (scripts/course/workshop.py): a file takes longer to read what it includes
# than to be compiled, so that is compiled once, into two headers: of the libraries below the lessons, and of the lessons.
# The other builds have none: there each file has to include what it uses.

target_precompile_headers(common PRIVATE
  <algorithm> <atomic> <chrono> <filesystem> <functional> <map> <memory> <mutex> <numeric> <optional> <span> <string> <thread>
  <unordered_map> <vector> <fmt/format.h> <mpi.h>)
set_source_files_properties(${fast_kernels} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)  # they have flags of their own
foreach(target data gpt2)
  target_precompile_headers(${target} REUSE_FROM common)
endforeach()

target_precompile_headers(frame PRIVATE lessons/frame/train.hpp)
get_property(programs DIRECTORY PROPERTY BUILDSYSTEM_TARGETS)
list(FILTER programs INCLUDE REGEX "^[0-9][0-9]_")
set(drivers)
if(EXISTS ${PROJECT_SOURCE_DIR}/tests/judge)  # not in a starter repository
  get_property(drivers DIRECTORY tests/judge PROPERTY BUILDSYSTEM_TARGETS)
  list(FILTER drivers INCLUDE REGEX "^judge_")
endif()
foreach(target IN LISTS programs drivers)
  target_precompile_headers(${target} REUSE_FROM frame)
endforeach()
