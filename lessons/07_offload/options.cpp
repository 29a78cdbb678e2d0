#include "lessons/07_offload/options.hpp"

#include "common/program/session.hpp"
#include "lessons/07_offload/costs.hpp"

namespace rankwise {

void declare(OptionTable& table, ZeroOffloadOptions& options)
{
  declare(table, static_cast<Zero3Options&>(options));
  declare(table, options.offload);
}

void check_lesson(const ZeroOffloadOptions& options, int N)
{
  check_tier(options.offload);
  check_lesson(static_cast<const Zero3Options&>(options), N);
}

void prepare(const ZeroOffloadOptions& options, RankOf rank)
{
  const TierBytes most = costs(options, rank).most;
  const bool one_memory = options.device == DeviceKind::cpu;
  check_host_capacity(in_tier(Tier::host, most), one_memory ? in_tier(Tier::device, most).total() : 0,
                      ranks_on_machine(), "Use more machines, a smaller model, or --tier=disk:DIR.");
  const std::int64_t file = in_tier(Tier::disk, most).total();
  if (file > 0)
    options.directory = std::make_shared<Descriptor>(
        lock_directory(options.offload.directory(), file, rank.rank, {rank_on_machine(), ranks_on_machine()}));
}

}  // namespace rankwise
