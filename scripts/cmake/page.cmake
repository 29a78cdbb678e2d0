# The page of a run (--html) without its data, as a constant of the programs: what scripts/page/compare_runs.py fills in too.

file(READ scripts/page/page.html page)
string(REPLACE "[[own." "[[page/runs." page "${page}")
foreach(part page/runs.css page/runs.html page/runs.js)
  file(READ scripts/${part} text)
  string(REPLACE "[[${part}]]" "${text}" page "${page}")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/scripts/${part})
endforeach()
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/scripts/page/page.html)
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/page_template.cpp @ONLY CONTENT
[==[#include "lessons/frame/instruments/page.hpp"

const std::string_view rankwise::page_template = R"page(@page@)page";
]==])
