#include "lessons/07_offload/what_fits.hpp"

#include "gpt2/smaller_run.hpp"

namespace rankwise {

std::string what_fits(TrainingOptions& training, GatherOptions& gathering, OffloadOptions& offload,
                      const std::function<std::int64_t()>& needs, std::int64_t room)
{
  SmallerRun run(needs, room);
  if (run.fits_with("--offload=all", offload.what, Offload::all) ||
      run.fits_with("--recompute=block", training.recompute_blocks, true) ||
      (training.gradients == DType::f32 &&
       run.fits_with("--micro-batch=1", training.micro_batch, std::int64_t{1})) ||
      run.fits_with("--prefetch=0", gathering.prefetch, std::int64_t{0}) ||
      run.fits_with("--unit=branch", gathering.unit, Unit::branch) ||
      run.fits_with("--reshard=after-forward", gathering.reshard, Reshard::after_forward) ||
      run.fits_with("--persist=0", gathering.persist, std::int64_t{0}))
    return run.enough();
  return run.least("", "Or use more ranks, or a smaller model.");
}

}  // namespace rankwise
