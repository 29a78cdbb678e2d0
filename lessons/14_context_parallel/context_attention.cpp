#include "lessons/14_context_parallel/context_attention.hpp"

namespace rankwise {

TokenRun::TokenRun(const Run& run, std::int64_t n, Range t)
    : number(n), tokens(t), work(run.memory, run.config, run.shape), kept(run.memory, run.config, run.shape, work)
{
}

Tensor TokenRun::dhidden() const
{
  return work.wide.slice({0, work.output.elements()});
}

Tensor TokenRun::dinner() const
{
  return work.wide.slice({work.output.elements(), 3 * work.output.elements()});
}

}  // namespace rankwise
