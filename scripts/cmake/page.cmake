# The page of a run (--html) without its data, as a constant of the programs: what scripts/compare_runs.py fills in too.

file(READ scripts/page/page.html page)
foreach(part film/film.css page/page.css page/page.js)
  get_filename_component(name ${part} NAME)
  file(READ scripts/${part} text)
  string(REPLACE "[[${name}]]" "${text}" page "${page}")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/scripts/${part})
endforeach()
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/scripts/page/page.html)
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/page_template.cpp @ONLY CONTENT
[==[#include "lessons/frame/page.hpp"

const std::string_view rankwise::page_template = R"page(@page@)page";
]==])
