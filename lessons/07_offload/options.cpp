#include "lessons/07_offload/options.hpp"

#include <fmt/format.h>

#include "common/program/session.hpp"
#include "lessons/07_offload/costs.hpp"

namespace rankwise {

void declare(OptionTable& table, ZeroOffloadOptions& options)
{
  declare(table, static_cast<Zero3Options&>(options));
  OffloadOptions& o = options.offload;
  const std::string group = "Offload";
  table.add_choice(group, "offload", o.what,
                   {{"optimizer", Offload::optimizer},
                    {"gradients", Offload::gradients},
                    {"parameters", Offload::parameters},
                    {"all", Offload::all}},
                   "which part of the model state leaves the device");
  table.add(group, "tier", o.tier, "where to: host memory, or one file per rank in a directory", "host|disk:DIR");
  table.add(group, "keep", o.keep, "keep the files in DIR after the run");
}

void check_lesson(const ZeroOffloadOptions& options, int N)
{
  const OffloadOptions& o = options.offload;
  const bool disk = !o.directory().empty();
  if (o.tier != "host" && !disk)
    throw UserError(fmt::format("--tier={} is not a tier.", o.tier),
                    "Use host for host memory, or disk:DIR for files in the directory DIR, as disk:/tmp.");
  if (o.keep && !disk)
    throw UserError("--keep needs files, and --tier=host has none.", "Leave it out, or use --tier=disk:DIR.");
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
