#include "lessons/parallel/zero/ddp_options.hpp"

namespace rankwise {

void declare(OptionTable& table, BucketOptions& options)
{
  declare(table, static_cast<LessonOptions&>(options));
  table.add("Data parallelism", "bucket", options.bucket, "least size of a bucket of gradients, as 25MB");
}

void check_lesson(const BucketOptions& options, int)
{
  check_bucket(options.bucket.value);
}

void declare(OptionTable& table, DdpOptions& options)
{
  declare(table, static_cast<BucketOptions&>(options));
  table.add_choice<Strategy>("Data parallelism", "strategy", options.strategy,
                             {{"per-tensor", Strategy::per_tensor},
                              {"flat", Strategy::flat},
                              {"bucketed", Strategy::bucketed},
                              {"overlapped", Strategy::overlapped}},
                             "when gradients are summed over the ranks");
  declare_elastic(table, options, false);
}

std::vector<Effect> effects_of(const DdpOptions& options)
{
  const bool in_buckets = options.strategy == Strategy::bucketed || options.strategy == Strategy::overlapped;
  return {{"bucket", in_buckets, "without buckets", "It has no effect. Use --strategy=bucketed or overlapped."}};
}

}  // namespace rankwise
