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
