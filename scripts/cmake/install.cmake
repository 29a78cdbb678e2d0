# cmake --install build --prefix FOLDER: the programs, their configurations, the pages, and a CMake package with all that a lesson
# of one's own needs, built elsewhere (docs/install.md):
#
#   bin/rankwise-NN_name                  the lessons, rankwise-prepare and rankwise-weights
#   share/rankwise/lessons/NN_name/       configurations and batch files
#   share/doc/rankwise/                   the pages, as they lie in the repository
#   include/rankwise/, lib/rankwise/      headers and libraries
#   lib/cmake/Rankwise/                   find_package(Rankwise)

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

foreach(program IN LISTS lesson_programs ITEMS prepare weights)
  install(PROGRAMS $<TARGET_FILE:${program}> DESTINATION ${CMAKE_INSTALL_BINDIR} RENAME rankwise-${program})
endforeach()
install(DIRECTORY lessons DESTINATION ${CMAKE_INSTALL_DATADIR}/rankwise FILES_MATCHING PATTERN "*.conf" PATTERN "*.sbatch")
install(FILES README.md CHANGELOG.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} OPTIONAL)
install(DIRECTORY docs lessons DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.md" PATTERN "*.svg"
        PATTERN docs/instructor EXCLUDE)

install(DIRECTORY common data gpt2 lessons DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/rankwise
        FILES_MATCHING PATTERN "*.hpp" PATTERN "*.h")
add_library(lessons_taught INTERFACE)  # what lessons share and have of their own, and the frame
set_target_properties(lessons_taught PROPERTIES EXPORT_NAME lessons)
target_link_libraries(lessons_taught INTERFACE ${lesson_libraries})
install(TARGETS lessons_taught ${lesson_libraries} frame gpt2 data common rankwise_flags rankwise_hdf5 rankwise_xxhash rankwise_pcre2
                rankwise_gemm rankwise_gpu
        EXPORT Rankwise ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}/rankwise)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/Rankwise)
install(EXPORT Rankwise NAMESPACE Rankwise:: DESTINATION ${package} FILE RankwiseTargets.cmake)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/RankwiseConfig.cmake.in ${PROJECT_BINARY_DIR}/RankwiseConfig.cmake
                              INSTALL_DESTINATION ${package})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/RankwiseConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/RankwiseConfig.cmake ${PROJECT_BINARY_DIR}/RankwiseConfigVersion.cmake
        DESTINATION ${package})
