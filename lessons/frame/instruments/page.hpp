#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

/// @file
/// The page of a run, for a browser.

namespace rankwise {

/// scripts/page/page.html with its style and script; `[[page.json]]` stands where the data belong.
extern const std::string_view page_template;

/// Writes the page that scripts/page/compare_runs.py makes of one report. It needs no other file and no network.
/// @param report  the document of --report.
/// @failure  Error when the file cannot be written.
void write_page(const std::string& path, const nlohmann::json& report);

}  // namespace rankwise
