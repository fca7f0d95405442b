// Second tier of the fake CUDA device: the changes of libtorch.py, with vtable slots that the
// compiler knows.  Built on demand against the headers of the installed torch.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/FakeGuardImpl.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace {

using Hooks = at::CUDAHooksInterface;

bool yes(const void*) {
  return true;
}

// A pointer to a virtual member function holds its vtable offset (Itanium C++ ABI, section 2.3);
// AArch64 keeps the "virtual" flag in the second word instead of the lowest bit of the first.
template <class Member>
size_t slot_of(Member member) {
  uintptr_t words[2];
  static_assert(sizeof member == sizeof words, "Itanium member pointers are two words");
  std::memcpy(words, &member, sizeof words);
#ifdef __aarch64__
  return words[0] / sizeof(void*);
#else
  return (words[0] - 1) / sizeof(void*);
#endif
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int install_fake_cuda(int cuda_build) {
  constexpr auto cuda = c10::DeviceType::CUDA;
  auto& guard = c10::impl::device_guard_impl_registry[static_cast<size_t>(cuda)];
  auto* current = guard.load();
  if (current == nullptr || current->deviceCount() == 0) {
    guard.store(new c10::impl::FakeGuardImpl<cuda>());
  }
  auto& hooks = *reinterpret_cast<void***>(const_cast<Hooks*>(&at::detail::getCUDAHooks()));
  constexpr size_t prefix = 2;
  constexpr size_t slots = 96;
  // Never freed: static destructors of libtorch use the table at exit.
  auto** copy = static_cast<void**>(std::malloc((prefix + slots) * sizeof(void*)));
  std::memcpy(copy, hooks - prefix, (prefix + slots) * sizeof(void*));
  auto** table = copy + prefix;
  table[slot_of(&Hooks::hasPrimaryContext)] = reinterpret_cast<void*>(&yes);
  if (!cuda_build) {
    table[slot_of(&Hooks::isBuilt)] = reinterpret_cast<void*>(&yes);
    table[slot_of(&Hooks::isAvailable)] = reinterpret_cast<void*>(&yes);
  }
  hooks = table;
  return 0;
}
