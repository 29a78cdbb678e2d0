#include "lessons/03_ddp/options.hpp"

#include <fmt/format.h>

#include "lessons/03_ddp/buckets.hpp"

namespace rankwise {

namespace {

constexpr const char* group = "Data parallelism";

}  // namespace

void declare(OptionTable& table, BucketOptions& options)
{
  declare(table, static_cast<LessonOptions&>(options));
  table.add(group, "bucket", options.bucket, "gradients that are sent together, at least; as 25MB");
  table.add(group, "check-every", options.check_every,
            "steps between comparisons of the ranks' parameters; 0: only at the end");
}

void declare(OptionTable& table, DdpOptions& options)
{
  declare(table, static_cast<BucketOptions&>(options));
  table.add_choice<Strategy>(group, "strategy", options.strategy,
                             {{"per-tensor", Strategy::per_tensor},
                              {"flat", Strategy::flat},
                              {"bucketed", Strategy::bucketed},
                              {"overlapped", Strategy::overlapped}},
                             "when gradients are summed over the ranks");
}

void check_lesson(const BucketOptions& options, int)
{
  check_bucket(options.bucket.value);
  if (options.check_every < 0)
    throw UserError(fmt::format("--check-every={} is out of range.", options.check_every),
                    "Use a number of steps, or 0.");
}

}  // namespace rankwise
