#include "common/base/json.hpp"

#include "common/base/error.hpp"

template class nlohmann::detail::serializer<nlohmann::json>;

namespace rankwise {

nlohmann::json parse_json(std::string_view text)
{
  constexpr int deepest = 1000;
  const auto keep = [](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    if (depth > deepest) throw Error("the JSON text is nested more than a thousand deep");
    return true;
  };
  return nlohmann::json::parse(text, keep);
}

std::string json_text(const nlohmann::json& value, int indent)
{
  return value.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace rankwise
