#include "lessons/12_bert/options.hpp"

#include <fmt/format.h>

namespace rankwise {

void declare(OptionTable& table, BertOptions& options)
{
  declare(table, static_cast<LessonOptions&>(options));
  declare(table, options.gathering);
  table.add("Data parallelism", "zero", options.zero,
            "what is sharded: 0 nothing (DDP), 1 the optimizer (ZeRO-1), 3 parameters too (ZeRO-3)");
  table.add("Data parallelism", "bucket", options.bucket,
            "least size of a bucket of gradients with --zero=0 or 1, as 25MB");
}

void check_lesson(const BertOptions& options, int)
{
  if (options.zero != 0 && options.zero != 1 && options.zero != 3)
    throw UserError(fmt::format("--zero={} is not a layout of this lesson.", options.zero),
                    "Use --zero=0 (lesson 03), --zero=1 (lesson 04) or --zero=3 (lesson 06).");
  if (options.mask != "full")
    throw UserError(fmt::format("--mask={} cannot be combined with a BERT.", options.mask),
                    "An encoder sees the tokens on both sides of a masked one. Leave --mask out.");
  if (options.sample > 0)
    throw UserError(fmt::format("--sample={} cannot be combined with a BERT.", options.sample),
                    "An encoder fills in masked tokens and does not continue a text. Leave --sample out.");
  const GatherOptions& asked = options.gathering;
  const GatherOptions none;
  const bool gathers = asked.unit != none.unit || asked.prefetch != none.prefetch ||
                       asked.reshard != none.reshard || asked.persist != none.persist;
  if (options.zero != 3 && gathers)
    throw UserError(
        fmt::format("--unit, --prefetch, --reshard and --persist have no effect with --zero={}.", options.zero),
        "They say when sharded parameters are gathered. Use --zero=3, or leave them out.");
  if (options.zero == 3 && options.bucket.value != BertOptions().bucket.value)
    throw UserError("--bucket has no effect with --zero=3.",
                    "There the gradients of an FSDP unit are a bucket. Use --unit, or --zero=0 or 1.");
  check_bucket(options.bucket.value);
  check_lesson(static_cast<const Zero3Options&>(options), 0);
}

}  // namespace rankwise
