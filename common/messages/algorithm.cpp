#include "common/messages/algorithm.hpp"

#include <algorithm>

namespace rankwise {

const std::vector<std::pair<std::string, Algorithm>>& algorithms()
{
  static const std::vector<std::pair<std::string, Algorithm>> all{
      {"ring", Algorithm::ring},       {"tree", Algorithm::tree},
      {"halving", Algorithm::halving}, {"hierarchical", Algorithm::hierarchical},
      {"shared", Algorithm::shared},   {"library", Algorithm::library},
      {"auto", Algorithm::automatic}};
  return all;
}

std::string_view name_of(Algorithm algorithm)
{
  if (algorithm == Algorithm::pairwise) return "pairwise";
  if (algorithm == Algorithm::bruck) return "bruck";
  const auto& all = algorithms();
  return std::find_if(all.begin(), all.end(), [=](const auto& entry) { return entry.second == algorithm; })->first;
}

}  // namespace rankwise
