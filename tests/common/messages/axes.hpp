#pragma once

#include <functional>
#include <vector>

#include "common/messages/mesh.hpp"
#include "tests/catch.hpp"

/// @file
/// Meshes for tests, and their points in order.

namespace rankwise::testing {

/// Calls f with every factorisation of N into the sizes of @p axes axes, the outermost first.
inline void for_each_mesh(int N, int axes, const std::function<void(const std::vector<Axis>&)>& f,
                          const std::vector<Axis>& outer = {})
{
  if (axes == 0) {
    if (N == 1) f(outer);
    return;
  }
  for (int size = 1; size <= N; ++size) {
    if (N % size != 0) continue;
    std::vector<Axis> more = outer;
    more.push_back({std::string(1, static_cast<char>('a' + outer.size())), size});
    for_each_mesh(N / size, axes - 1, f, more);
  }
}

/// Calls f with each rank of a mesh and its coordinates, which count up as the digits of a number do: the last one first.
inline void for_each_point(const std::vector<Axis>& axes,
                           const std::function<void(int rank, const std::vector<int>& coordinates)>& f)
{
  std::vector<int> digits(axes.size());
  for (int rank = 0;; ++rank) {
    f(rank, digits);
    std::size_t a = axes.size();
    while (a > 0 && ++digits[a - 1] == axes[a - 1].size) digits[--a] = 0;
    if (a == 0) return;
  }
}

/// Calls f with each point of all meshes of 1 to 24 ranks and 1 to 4 axes. Messages of failures contain the sizes.
inline void for_each_point_of_all(
    const std::function<void(const std::vector<Axis>&, int rank, const std::vector<int>& coordinates)>& f)
{
  for (int N = 1; N <= 24; ++N)
    for (int count = 1; count <= 4; ++count)
      for_each_mesh(N, count, [&](const std::vector<Axis>& axes) {
        std::vector<int> sizes;
        for (const Axis& axis : axes) sizes.push_back(axis.size);
        CAPTURE(sizes);
        for_each_point(axes, [&](int rank, const std::vector<int>& coordinates) { f(axes, rank, coordinates); });
      });
}

}  // namespace rankwise::testing
