#include "common/base/json.hpp"

#include <istream>

template class nlohmann::detail::serializer<nlohmann::json>;

namespace rankwise {

nlohmann::json parse_json(std::string_view text)
{
  return nlohmann::json::parse(text);
}

nlohmann::json parse_json(std::istream& file)
{
  return nlohmann::json::parse(file, nullptr, false);
}

}  // namespace rankwise
