#include "lessons/07_offload/what_fits.hpp"

#include <fmt/format.h>

#include "common/text.hpp"

namespace rankwise {

std::string what_fits(TrainingOptions& training, GatherOptions& gathering, OffloadOptions& offload,
                      const std::function<std::int64_t()>& needs, std::int64_t room)
{
  std::string with;
  std::int64_t least = 0;
  const auto fits_with = [&](const std::string& option, auto& value, auto other) {
    if (value == other) return false;
    value = other;
    with += (with.empty() ? "" : " ") + option;
    least = needs();
    return least <= room;
  };
  if (fits_with("--offload=all", offload.what, Offload::all) ||
      fits_with("--recompute=block", training.recompute_blocks, true) ||
      (training.gradients == DType::f32 && fits_with("--micro-batch=1", training.micro_batch, std::int64_t{1})) ||
      fits_with("--prefetch=0", gathering.prefetch, std::int64_t{0}) ||
      fits_with("--unit=branch", gathering.unit, Unit::branch) ||
      fits_with("--reshard=after-forward", gathering.reshard, Reshard::after_forward) ||
      fits_with("--persist=0", gathering.persist, std::int64_t{0}))
    return fmt::format("{} bytes are enough with {}.", group_digits(least), with);
  const std::string fewer = with.empty() ? "these options" : with;
  return fmt::format("The least that works is {} bytes, with {}. Or use more ranks, or a smaller model.",
                     group_digits(needs()), fewer);
}

}  // namespace rankwise
