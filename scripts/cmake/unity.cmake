# The sources of a folder include much the same headers and instantiate the same templates. Where a build has to be fast, they are
# compiled as one file, a folder at a time: build/CMakeFiles/TARGET.dir/Unity/. A Debug build compiles each by itself, so it shows
# where an include is missing. Builds for exercises do so with the files that have exercises, since these change one by one.

if(CMAKE_BUILD_TYPE MATCHES "^(Release|Exercise|Sanitize|Threads)$")
  set(rankwise_unity ON)
else()
  set(rankwise_unity OFF)
endif()
option(RANKWISE_UNITY "Compile a folder of a library as one file" ${rankwise_unity})

if(CMAKE_BUILD_TYPE STREQUAL Exercise)  # which files have exercises is read once more when there is a new one
  file(GLOB tables CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/lessons/*/exercises.toml)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${tables})
endif()

# rankwise_compile_by_folder(target): a library.
function(rankwise_compile_by_folder target)
  if(NOT RANKWISE_UNITY)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    get_filename_component(folder "${source}" DIRECTORY)
    string(REPLACE "${PROJECT_SOURCE_DIR}/" "" folder "${folder}")
    string(MAKE_C_IDENTIFIER "${folder}" group)
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP "${group}")
    set(regions "")
    if(CMAKE_BUILD_TYPE STREQUAL Exercise AND EXISTS ${source})
      file(STRINGS ${source} regions LIMIT_COUNT 1 REGEX "^ *// BEGIN EXERCISE ")
    endif()
    # Side by side in one file, kernels of g++ 12 take up to twice as long.
    if(regions OR (folder MATCHES "^gpt2/kernels/" AND NOT CMAKE_BUILD_TYPE STREQUAL Exercise))
      set_source_files_properties(${source} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    endif()
  endforeach()
  # g++ takes an anonymous namespace of such a file for one in a header.
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
endfunction()

# rankwise_build_fast(target): in a release build its code is optimised only as far as that costs little time.
function(rankwise_build_fast target)
  target_compile_options(${target} PRIVATE
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-Og>
    $<$<AND:$<COMPILE_LANG_AND_ID:CXX,GNU>,$<CONFIG:Release>>:-Wno-maybe-uninitialized>)  # it then sees too little of a function
endfunction()

# rankwise_precompile_headers(): a compiler spends most of its time on what a file includes. So that is compiled once, into three
# headers: one for code that is built fast, one for code that runs fast, one for the tests. Debug builds have none: there each file has
# to include what it uses.
function(rankwise_precompile_headers)
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
endfunction()
