# A compiler spends most of its time on what a file includes. So that is compiled once, into three headers: one for code that is
# built fast, one for code that runs fast, one for the tests. Debug builds have none: there each file has to include what it uses.

# g++ takes a precompiled header of the standard library for code of ours, and warns of endless copies in its own std::string.
target_compile_options(rankwise_flags INTERFACE
  $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-array-bounds> $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-stringop-overflow>)

set(headers <algorithm> <array> <atomic> <chrono> <cmath> <cstdint> <filesystem> <functional> <map> <memory> <mutex> <numeric>
            <optional> <span> <string> <string_view> <thread> <unordered_map> <utility> <vector> <fmt/format.h> <fmt/ranges.h>
            <mpi.h>)
if(RANKWISE_TESTS)
  target_precompile_headers(test_headers PRIVATE ${headers})
endif()
if(RANKWISE_HOST_BUILD)  # the libraries are compiled already
  return()
endif()
# JSON's header costs every file that includes it a third of a second: it is for what is built fast, which writes reports.
target_precompile_headers(common PRIVATE ${headers} ${PROJECT_SOURCE_DIR}/common/base/json.hpp)
target_precompile_headers(common_hot PRIVATE ${headers})
set_source_files_properties(${fast_kernels} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)  # they have flags of their own
set(drivers)
if(RANKWISE_TESTS AND EXISTS ${PROJECT_SOURCE_DIR}/tests/judge)  # not in a starter repository
  get_property(drivers DIRECTORY tests/judge PROPERTY BUILDSYSTEM_TARGETS)
  list(FILTER drivers INCLUDE REGEX "^judge_")
endif()
foreach(target gpt2 frame ${lesson_programs} ${drivers})
  target_precompile_headers(${target} REUSE_FROM common)
endforeach()
foreach(target data_hot gpt2_hot ${lesson_libraries})
  target_precompile_headers(${target} REUSE_FROM common_hot)
endforeach()
