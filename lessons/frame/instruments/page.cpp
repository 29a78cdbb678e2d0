#include "lessons/frame/instruments/page.hpp"

#include "common/base/json.hpp"
#include "common/files/output_file.hpp"

namespace rankwise {

void write_page(const std::string& path, const nlohmann::json& report)
{
  std::string data = json_text(nlohmann::json::array({report}));
  // A browser reads "</script" and "<!--<script" before the script does.
  for (std::size_t at = 0; (at = data.find('<', at)) != std::string::npos;) data.replace(at, 1, "\\u003c");
  constexpr std::string_view mark = "[[page.json]]";
  std::string page(page_template);
  page.replace(page.find(mark), mark.size(), data);
  write_file(path, page);
}

}  // namespace rankwise
