#include "common/messages/agreement.hpp"

#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/error.hpp"

namespace rankwise {

std::vector<std::string> gather_texts(const Communicator& communicator, const std::string& own)
{
  const int N = communicator.ranks(), length = static_cast<int>(own.size());
  std::vector<int> lengths(static_cast<std::size_t>(N)), places(static_cast<std::size_t>(N));
  check_mpi(MPI_Allgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, communicator.handle()),
            "gathering texts");
  int total = 0;
  for (std::size_t r = 0; r < lengths.size(); ++r) places[r] = std::exchange(total, total + lengths[r]);
  std::string all(static_cast<std::size_t>(total), ' ');
  check_mpi(MPI_Allgatherv(own.data(), length, MPI_CHAR, all.data(), lengths.data(), places.data(), MPI_CHAR,
                           communicator.handle()),
            "gathering texts");
  std::vector<std::string> texts;
  for (std::size_t r = 0; r < lengths.size(); ++r)
    texts.push_back(all.substr(static_cast<std::size_t>(places[r]), static_cast<std::size_t>(lengths[r])));
  return texts;
}

void check_agreement(const Communicator& communicator,
                     const std::vector<std::pair<std::string, std::string>>& facts)
{
  for (const auto& [name, value] : facts) {
    std::map<std::string, std::vector<int>> ranks_by_value;
    int rank = 0;
    for (const std::string& text : gather_texts(communicator, value)) ranks_by_value[text].push_back(rank++);
    if (ranks_by_value.size() == 1) continue;
    std::string who;
    for (const auto& [text, ranks] : ranks_by_value)
      who += fmt::format("rank {}: {}\n", fmt::join(ranks, ", "), text.empty() ? "nothing" : text);
    throw UserError(fmt::format("the ranks were given different values: {}.", name),
                    who + "All ranks work on one model, so each must be given the same options and the same data.");
  }
}

}  // namespace rankwise
