#include "common/base/json.hpp"

#include <istream>
#include <utility>

#include "common/base/error.hpp"

template class nlohmann::detail::serializer<nlohmann::json>;

namespace rankwise {

namespace {

/// The value; is_discarded() if it is nested too deep: functions that visit it call themselves once a level.
template <class Input>
nlohmann::json parse(Input&& input, bool throws)
{
  constexpr int deepest = 1000;
  bool too_deep = false;
  const auto keep = [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    too_deep = too_deep || depth > deepest;
    return !too_deep;
  };
  nlohmann::json value = nlohmann::json::parse(std::forward<Input>(input), keep, throws);
  return too_deep ? nlohmann::json(nlohmann::json::value_t::discarded) : value;
}

}  // namespace

nlohmann::json parse_json(std::string_view text)
{
  nlohmann::json value = parse(text, true);
  check(!value.is_discarded(), "the JSON text is nested too deep");
  return value;
}

nlohmann::json parse_json(std::istream& file)
{
  return parse(file, false);
}

std::string json_text(const nlohmann::json& value, int indent)
{
  return value.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace rankwise
