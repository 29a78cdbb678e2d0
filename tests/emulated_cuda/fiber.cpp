#include "tests/emulated_cuda/fiber.hpp"

#include <new>

#include <boost/context/detail/fcontext.hpp>
#include <sys/mman.h>

#include "tests/emulated_cuda/sanitizer.hpp"

namespace emulated_cuda {

namespace {

using boost::context::detail::transfer_t;

constexpr std::size_t guard_bytes = 4096;  // below a stack: an overflow hits it
constexpr std::size_t stack_bytes = under_address_sanitizer ? 512 << 10 : 128 << 10;

}  // namespace

/// The two sides of a switch. One fiber runs at a time in the whole process.
struct Fiber::Switches {
  static inline Fiber* running = nullptr;
  static inline void* resumer = nullptr;              // context of its resumer
  static inline const void* resumer_stack = nullptr;  // and its stack, for AddressSanitizer
  static inline std::size_t resumer_stack_bytes = 0;

  static void arrived_in_fiber(transfer_t from, void* kept)
  {
    after_switch(kept, &resumer_stack, &resumer_stack_bytes);
    resumer = from.fctx;
  }

  static void begin(transfer_t from)
  {
    arrived_in_fiber(from, nullptr);
    running->body_();
  }
};

Fiber::Fiber(void (*body)()) : body_(body)
{
  void* const memory = mmap(nullptr, guard_bytes + stack_bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, guard_bytes, PROT_NONE) != 0) throw std::bad_alloc();
  stack_ = static_cast<std::byte*>(memory);
  unpoison(stack_ + guard_bytes, stack_bytes);
  context_ =
      boost::context::detail::make_fcontext(stack_ + guard_bytes + stack_bytes, stack_bytes, Switches::begin);
}

Fiber::~Fiber()
{
  unpoison(stack_ + guard_bytes, stack_bytes);  // what a forgotten fiber had on its stack
  munmap(stack_, guard_bytes + stack_bytes);
}

void Fiber::resume()
{
  void* kept = nullptr;
  Switches::running = this;
  before_switch(&kept, stack_ + guard_bytes, stack_bytes);
  context_ = boost::context::detail::jump_fcontext(context_, nullptr).fctx;
  after_switch(kept, nullptr, nullptr);
}

void Fiber::suspend()
{
  Fiber& self = *Switches::running;
  before_switch(&self.kept_, Switches::resumer_stack, Switches::resumer_stack_bytes);
  const transfer_t from = boost::context::detail::jump_fcontext(Switches::resumer, nullptr);
  Switches::arrived_in_fiber(from, self.kept_);
}

}  // namespace emulated_cuda
