#include "lessons/parallel/pipeline/tied_embedding.hpp"

#include <utility>
#include <vector>

#include "common/messages/job_report.hpp"
#include "lessons/frame/replicas.hpp"

namespace rankwise {

std::unique_ptr<Group> group_of_ends(const Group& line, const GroupSetup& setup)
{
  if (line.ranks() == 1) return nullptr;
  const int own = line.rank(), last = line.ranks() - 1;
  const bool end = own == 0 || own == last;
  Communicator ranks = line.communicator().among(end ? std::vector{0, last} : std::vector{own});
  return end ? std::make_unique<Group>("tied", std::move(ranks), setup) : nullptr;
}

void check_tied(Report& report, const std::vector<Range>& own, const std::vector<Shard>& shards, Stream& stream,
                Group* ends)
{
  std::string hash;
  for (std::size_t i = 0; i < own.size(); ++i)
    if (ends != nullptr && own[i].first == 0) hash = replica_hash(stream, shards[i].parameters);
  report.check("tied embedding on first and last stage", "the same", hash,
               on_all_ranks(ends == nullptr || same_on_all_ranks(hash, *ends)));
}

}  // namespace rankwise
