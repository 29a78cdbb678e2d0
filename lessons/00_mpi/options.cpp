#include "lessons/00_mpi/options.hpp"

#include <utility>
#include <vector>

#include <fmt/format.h>

#include "common/base/error.hpp"
#include "common/base/text.hpp"
#include "common/program/placement.hpp"
#include "lessons/frame/vector_options.hpp"

namespace rankwise {

MpiOptions::MpiOptions()
{
  std::vector<std::pair<std::string, std::string>> parts;  // in the order in which they are shown
  for (const char* name :
       {"all", "ranks", "communicators", "deadlock", "order", "ping-pong", "eager", "broadcast", "sum", "hang"})
    parts.emplace_back(name, name);
  table.add_choice("Parts", "show", show, parts, "part to show; hang is a real deadlock");
  table.add("Parts", "count", count, "elements of the vector of broadcast and sum");
  table.add("Parts", "root", root, "rank that broadcasts");
  table.add("Parts", "repeats", repeats, "timed round trips per size, of which the median is reported");
  table.add("Run", "timeout", timeout_s,
            "seconds without progress after which the watchdog ends the job; 0: never");
  table.add_file("Run", "report", report, FileUse::print, "where to write the report");
}

void check_options(const MpiOptions& options, const Session& session)
{
  check_vectors(options.count, 1 << 26, options.root, session.ranks(), options.repeats);
  if (options.timeout_s < 0)
    throw UserError(fmt::format("--timeout={} is out of range.", options.timeout_s),
                    "Use a number of seconds, or 0 for no limit.");
  if (options.show == "hang" && (session.ranks() < 2 || options.timeout_s == 0))
    throw UserError(session.ranks() < 2 ? "--show=hang on one rank: no watchdog would end the deadlock."
                                        : "--show=hang with --timeout=0: nothing would end the deadlock.",
                    "Use `mpirun -np 2` or more ranks, and a time limit such as --timeout=2.");
  const bool adds = options.shows("sum"), broadcasts = options.shows("broadcast");
  const std::string elsewhere = fmt::format("with --show={}", options.show);
  options.table.check_effects({{"count", adds || broadcasts, elsewhere, "Use --show=broadcast or sum."},
                               {"root", broadcasts, elsewhere, "Use --show=broadcast."},
                               {"repeats", options.shows("ping-pong"), elsewhere, "Use --show=ping-pong."}});
  CategoryBytes least;
  if (adds || broadcasts) least[Category::workspace] = 3 * 8 * options.count;  // own, that of the library, a shard
  check_device_capacity(least, DeviceKind::cpu, "Use a smaller --count, or fewer ranks.");
}

}  // namespace rankwise
