#include "lessons/parallel/zero/sharded_norm.hpp"

namespace rankwise {

double squared_norm(const Kernels& kernels, const std::vector<Tensor>& own, Group& group)
{
  // BEGIN EXERCISE 04.2
  auto sum = kernels->squared_norm(own[0]);
  for (std::size_t i = 1; i < own.size(); ++i) sum += kernels->squared_norm(own[i]);
  all_reduce_sum(sum, group);
  return sum.value();
  // END EXERCISE
}

}  // namespace rankwise
