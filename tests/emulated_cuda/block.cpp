#include "tests/emulated_cuda/block.hpp"

#include <array>
#include <bit>
#include <memory>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "tests/emulated_cuda/async_copies.hpp"
#include "tests/emulated_cuda/fiber.hpp"
#include "tests/emulated_cuda/machine.hpp"

uint3 threadIdx;
uint3 blockIdx;
dim3 blockDim;
dim3 gridDim;

namespace emulated_cuda {

namespace {

enum class State : std::uint8_t { waits_for_nothing, waits_for_block, waits_for_warp, ended };

struct Thread {
  State state = State::waits_for_nothing;
  WarpCall call{};          // the rest is about the call that it waits in
  unsigned mask = 0;        // of a warp's call
  int lane = 0;             // whose value it wants
  std::uint64_t value = 0;  // what it gives, and then what it gets
  Line where;
  Fiber* fiber = nullptr;  // on which it runs
  AsyncCopies copies{};    // to shared memory
};

/// The block that runs: there is one at a time.
struct Block {
  const std::function<void()>* thread = nullptr;
  std::vector<Thread> threads;
  std::vector<unsigned> fresh;    // threads that have not begun, the next one last
  std::vector<unsigned> ready;    // threads that have waited and can continue
  std::vector<unsigned> arrived;  // by warp: lanes that wait in a call
  std::size_t in_barrier = 0;
  std::size_t ended = 0;
  unsigned hurried = 0;  // the warp that runs ahead of the others
  unsigned current = 0;  // the thread that runs
  bool waits = false;    // the fiber was suspended by a thread that waits
  std::optional<std::string> failure;
};

Block block;
std::vector<std::unique_ptr<Fiber>> all_fibers;
std::vector<Fiber*> idle_fibers;

uint3 index_of(unsigned thread)
{
  if (blockDim.y == 1 && blockDim.z == 1) return {thread, 0, 0};
  return {thread % blockDim.x, thread / blockDim.x % blockDim.y, thread / blockDim.x / blockDim.y};
}

std::string name_of(unsigned thread)
{
  const uint3 i = index_of(thread);
  return fmt::format("thread ({},{},{}) of block ({},{},{})", i.x, i.y, i.z, blockIdx.x, blockIdx.y, blockIdx.z);
}

std::string name_of(Line where)
{
  return fmt::format("{}:{}", where.file, where.number);
}

void enter(unsigned thread)
{
  block.current = thread;
  threadIdx = index_of(thread);
}

/// What each fiber does: thread after thread. A thread that never waits costs no switch.
void run_threads()
{
  for (;;) {
    while (!block.fresh.empty()) {
      enter(block.fresh.back());
      block.fresh.pop_back();
      (*block.thread)();
      block.threads[block.current].state = State::ended;
      ++block.ended;
    }
    Fiber::suspend();
  }
}

/// The current thread waits until it is made ready.
void wait_in(State state)
{
  Thread& self = block.threads[block.current];
  self.state = state;
  block.waits = true;
  Fiber::suspend();
}

void make_ready(unsigned thread)
{
  block.threads[thread].state = State::waits_for_nothing;
  block.ready.push_back(thread);
}

/// Reports that the block cannot continue. Within a thread this does not return.
void fail(std::string why)
{
  block.failure = std::move(why);
}

[[noreturn]] void fail_here(const std::string& why, Line where)
{
  fail(fmt::format("{}, {} at {}", why, name_of(block.current), name_of(where)));
  for (;;) Fiber::suspend();
}

bool is_shuffle(WarpCall call)
{
  return call == WarpCall::shuffle || call == WarpCall::shuffle_xor || call == WarpCall::shuffle_down;
}

bool is_work(WarpCall call)
{
  return call == WarpCall::load_matrices || call == WarpCall::multiply_matrices;
}

/// Reports that all threads wait and none can continue.
void explain_standstill()
{
  for (unsigned i = 0; i < block.threads.size(); ++i) {
    const Thread& thread = block.threads[i];
    if (thread.state != State::waits_for_warp) continue;
    for (unsigned mask = thread.mask; mask != 0; mask &= mask - 1) {
      const unsigned other = i / warpSize * warpSize + static_cast<unsigned>(std::countr_zero(mask));
      if (other < block.threads.size() && block.threads[other].state == State::waits_for_warp) continue;
      return fail(fmt::format("wrong warp mask {:#010x}: {} waits at {} for lane {}, which {}", thread.mask,
                              name_of(i), name_of(thread.where), other % warpSize,
                              other >= block.threads.size()                ? "the block does not have"
                              : block.threads[other].state == State::ended ? "has ended"
                                                                           : "waits at __syncthreads"));
    }
  }
  std::string waits;
  std::string absent;
  for (unsigned i = 0; i < block.threads.size(); ++i) {
    const Thread& thread = block.threads[i];
    if (thread.state == State::waits_for_block && waits.empty())
      waits = fmt::format("{} waits at {}", name_of(i), name_of(thread.where));
    if (thread.state == State::ended && absent.empty()) absent = fmt::format("{} has ended", name_of(i));
    if (thread.state == State::waits_for_warp && absent.empty())
      absent = fmt::format("{} waits for its warp at {}", name_of(i), name_of(thread.where));
  }
  fail(fmt::format("missing or divergent __syncthreads: {}, {}", waits, absent));
}

void draw_order(std::size_t count)
{
  block.fresh.resize(count);
  for (unsigned i = 0; i < count; ++i) {
    const std::size_t j = machine().random.below(i + 1);
    block.fresh[i] = block.fresh[j];
    block.fresh[j] = i;
  }
}

Fiber& idle_fiber()
{
  if (idle_fibers.empty()) {
    all_fibers.push_back(std::make_unique<Fiber>(run_threads));
    idle_fibers.push_back(all_fibers.back().get());
  }
  Fiber& fiber = *idle_fibers.back();
  idle_fibers.pop_back();
  return fiber;
}

/// Index of the ready thread that runs next, or a larger number for those that have not begun. A warp of a GPU may run
/// ahead of the others as far as barriers let it, which would hardly ever happen if each turn were drawn evenly.
std::size_t draw_turn()
{
  constexpr std::size_t turns_of_a_hurry = 200;
  const std::size_t warps = block.arrived.size();
  if (warps > 1 && machine().random.below(turns_of_a_hurry) == 0)
    block.hurried = static_cast<unsigned>(machine().random.below(warps));
  if (warps > 1 && block.fresh.empty())
    for (std::size_t i = block.ready.size(); i-- > 0;)
      if (block.ready[i] / warpSize == block.hurried) return i;
  return machine().random.below(block.ready.size() + block.fresh.size());
}

/// Runs a thread that can continue, or those that have not begun.
void give_turn()
{
  const std::size_t drawn = draw_turn();
  Fiber* fiber = nullptr;
  if (drawn < block.ready.size()) {
    const unsigned thread = block.ready[drawn];
    block.ready[drawn] = block.ready.back();
    block.ready.pop_back();
    fiber = block.threads[thread].fiber;
    enter(thread);
  } else {
    fiber = &idle_fiber();
  }
  block.waits = false;
  fiber->resume();
  if (block.failure) return;
  if (block.waits) {
    block.threads[block.current].fiber = fiber;
  } else {
    idle_fibers.push_back(fiber);
  }
}

}  // namespace

std::optional<std::string> run_block(const std::function<void()>& thread)
{
  const std::size_t count = std::size_t{blockDim.x} * blockDim.y * blockDim.z;
  block.thread = &thread;
  block.threads.assign(count, Thread{});
  block.arrived.assign((count + warpSize - 1) / warpSize, 0);
  block.ready.clear();
  block.in_barrier = block.ended = 0;
  block.failure.reset();
  block.hurried = static_cast<unsigned>(machine().random.below(block.arrived.size()));
  draw_order(count);
  while (block.ended < count && !block.failure) {
    if (block.ready.empty() && block.fresh.empty()) {
      explain_standstill();
    } else {
      give_turn();
    }
  }
  if (block.failure) {  // the threads that wait are forgotten, with their stacks
    idle_fibers.clear();
    all_fibers.clear();
  }
  return block.failure;
}

void block_barrier(Line where)
{
  block.threads[block.current].where = where;
  if (++block.in_barrier == block.threads.size()) {
    for (const Thread& thread : block.threads)
      if (thread.where.number != where.number || std::string_view(thread.where.file) != where.file)
        fail_here(
            fmt::format("missing or divergent __syncthreads: other threads wait at {}", name_of(thread.where)),
            where);
    block.in_barrier = 0;
    for (unsigned i = 0; i < block.threads.size(); ++i) make_ready(i);
  }
  wait_in(block.in_barrier == 0 ? State::waits_for_nothing : State::waits_for_block);
}

AsyncCopies& copies_of_thread()
{
  return block.threads[block.current].copies;
}

int lane_of_thread()
{
  return static_cast<int>(block.current % warpSize);
}

std::uint64_t warp_exchange(WarpCall call, unsigned mask, std::uint64_t value, int lane, Line where)
{
  Thread& self = block.threads[block.current];
  const unsigned first = block.current / warpSize * warpSize;
  const unsigned own = 1u << (block.current % warpSize);
  if ((mask & own) == 0)
    fail_here(fmt::format("wrong warp mask {:#010x}: it does not name the thread that calls", mask), where);
  if (is_shuffle(call) && (mask >> lane & 1) == 0)
    fail_here(
        fmt::format("wrong warp mask {:#010x}: the value of lane {} is wanted, which it does not name", mask, lane),
        where);
  self.call = call;
  self.mask = mask;
  self.lane = lane;
  self.value = value;
  self.where = where;
  unsigned& arrived = block.arrived[first / warpSize];
  arrived |= own;
  if ((arrived & mask) != mask) {
    wait_in(State::waits_for_warp);
    return self.value;
  }

  std::array<std::uint64_t, warpSize> given{};
  std::uint64_t ballot = 0;
  for (unsigned rest = mask; rest != 0; rest &= rest - 1) {
    const auto other = static_cast<unsigned>(std::countr_zero(rest));
    const Thread& thread = block.threads[first + other];
    if (thread.mask != mask || thread.call != call)
      fail_here(fmt::format("wrong warp mask {:#010x}: lane {} waits at {} with mask {:#010x}", mask, other,
                            name_of(thread.where), thread.mask),
                where);
    given[other] = thread.value;
    if (thread.value != 0) ballot |= 1u << other;
  }
  if (is_work(call)) reinterpret_cast<const WarpWork*>(value)->work(given.data());
  for (unsigned rest = mask; rest != 0; rest &= rest - 1) {
    const auto other = static_cast<unsigned>(std::countr_zero(rest));
    Thread& thread = block.threads[first + other];
    thread.value = call == WarpCall::ballot ? ballot : given[static_cast<std::size_t>(thread.lane)];
    make_ready(first + other);
  }
  arrived &= ~mask;
  wait_in(State::waits_for_nothing);
  return self.value;
}

}  // namespace emulated_cuda
