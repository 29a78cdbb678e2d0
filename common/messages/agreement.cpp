#include "common/messages/agreement.hpp"

#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/error.hpp"

namespace rankwise {

std::vector<std::string> gather_texts(const Communicator& communicator, const std::string& own)
{
  const int length = static_cast<int>(own.size());
  const std::vector<int> lengths = gather_all(length, communicator.handle(), "gathering texts");
  std::vector<int> places(lengths.size());
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
    const std::vector<std::string> values = gather_texts(communicator, value);
    std::map<std::string, std::vector<std::size_t>> ranks_by_value;
    for (std::size_t r = 0; r < values.size(); ++r) ranks_by_value[values[r]].push_back(r);
    if (ranks_by_value.size() == 1) continue;
    std::string who;
    for (std::size_t r = 0; r < values.size(); ++r)  // in the order of the first rank of each value
      if (const auto& ranks = ranks_by_value[values[r]]; ranks.front() == r)
        who += fmt::format("rank {}: {}\n", fmt::join(ranks, ", "), values[r].empty() ? "nothing" : values[r]);
    throw UserError(fmt::format("the ranks differ in {}.", name),
                    who +
                        "All ranks work on one model, so each must run the same program, with the same options and "
                        "files of the "
                        "same\ncontent. A node's own disk may hold another file under the same name.");
  }
}

}  // namespace rankwise
