#include <array>
#include <string>

#include "common/base/json.hpp"
#include "common/files/output_file.hpp"
#include "common/messages/rehearsal/rehearsal.hpp"

namespace rankwise {

namespace {

/// Names of ScriptLine::Kind, in order.
constexpr std::array<const char*, 10> kinds{"compute", "start", "finish", "hand over", "begin",
                                            "end",     "wait",  "enter",  "leave",     "step"};

nlohmann::json as_json(const ScriptLine& line)
{
  nlohmann::json json{{"do", kinds.at(static_cast<std::size_t>(line.kind))}};
  switch (line.kind) {
    case ScriptLine::Kind::compute:
      json["ps"] = line.takes;
      json["flops"] = line.flops;
      break;
    case ScriptLine::Kind::enter:
    case ScriptLine::Kind::leave:
    case ScriptLine::Kind::step:
      break;
    default:
      json["number"] = line.number;
  }
  for (const RehearsedMessage& message : line.messages)
    json["messages"].push_back({{message.direction == Transfer::Direction::send ? "to" : "from", message.peer},
                                {"bytes", message.bytes},
                                {"group", message.group}});
  return json;
}

}  // namespace

void write_scripts(const std::string& path, const std::vector<StepScript>& scripts)
{
  std::string text;
  for (std::size_t rank = 0; rank < scripts.size(); ++rank)
    for (const Lane lane : {Lane::compute, Lane::communication})
      for (const ScriptLine& line : scripts[rank].lines(lane)) {
        nlohmann::json json = as_json(line);
        json["rank"] = rank;
        json["lane"] = name_of(lane);
        text += json_text(json) + "\n";
      }
  write_file(path, text);
}

}  // namespace rankwise
