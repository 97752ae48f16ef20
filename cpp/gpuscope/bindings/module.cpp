// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cerrno>
#include <new>
#include <system_error>

#include "gpuscope/base/errors.h"
#include "gpuscope/bindings/bind.h"

namespace py = pybind11;

namespace gpuscope::bindings {
namespace {

// The classes are in gpuscope/errors.py, with docstrings and fields. C++ finds them by name.
void raise(const char* name, const py::tuple& arguments) {
  const py::object type = py::module_::import("gpuscope.errors").attr(name);
  PyErr_SetObject(type.ptr(), type(*arguments).ptr());
}

void translate_errors() {
  py::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) {
        std::rethrow_exception(thrown);
      }
    } catch (const base::CudaError& error) {
      raise("CudaError", py::make_tuple(error.what(), error.call(), error.code()));
    } catch (const base::CorruptTrace& error) {
      raise("CorruptTrace", py::make_tuple(error.what(), error.path(), error.offset()));
    } catch (const base::NotAvailable& error) {
      raise("NotAvailable", py::make_tuple(error.what()));
    } catch (const base::InvalidArgument& error) {
      raise("InvalidArgument", py::make_tuple(error.what()));
    } catch (const base::Error& error) {
      raise("GpuscopeError", py::make_tuple(error.what()));
    } catch (const std::bad_alloc&) {
      raise("NotEnoughMemory", py::tuple());
    } catch (const std::system_error& error) {
      errno = error.code().value();
      PyErr_SetFromErrno(PyExc_OSError);
    }
  });
}

}  // namespace
}  // namespace gpuscope::bindings

PYBIND11_MODULE(_core_of_main, module) {
  using namespace gpuscope::bindings;
  module.doc() = "The C++ core of gpuscope; use the names that the package itself exports.";
  module.attr("__version__") = GPUSCOPE_VERSION;
  translate_errors();
  bind_store(module);
  bind_analysis(module);
  bind_readers(module);
  bind_regions(module);
  bind_timing(module);
  bind_session(module);
  bind_counters(module);
  bind_signals(module);
  bind_torch(module);
  bind_torch_modules(module);
  bind_python_functions(module);
  bind_python_samples(module);
  bind_memory(module);
  bind_nvml(module);
  bind_environment(module);
  bind_black_box(module);
}

namespace {

int refuse_subinterpreters(PyObject*) {
  if (PyInterpreterState_Get() == PyInterpreterState_Main()) {
    return 0;
  }
  PyErr_SetString(PyExc_ImportError, "gpuscope._core serves one interpreter a process: import it in the main one");
  return -1;
}

}  // namespace

// pybind11 takes the GIL with PyGILState_Ensure, which never returns in a subinterpreter. So subinterpreters are
// refused first. Up to Python 3.12 this function runs in the importing interpreter. From 3.13 on it runs in the main
// one, and the slots run in the importing one.
extern "C" PYBIND11_EXPORT PyObject* PyInit__core() {
  if (refuse_subinterpreters(nullptr) != 0) {
    return nullptr;
  }
  auto* definition = reinterpret_cast<PyModuleDef*>(PyInit__core_of_main());
  static std::array<PyModuleDef_Slot, 8> slots{{{Py_mod_exec, reinterpret_cast<void*>(&refuse_subinterpreters)}}};
  if (definition != nullptr && definition->m_slots != slots.data()) {
    std::size_t count = 1;
    for (const PyModuleDef_Slot* slot = definition->m_slots; slot->slot != 0 && count + 1 < slots.size(); ++slot) {
      slots[count++] = *slot;
    }
    definition->m_slots = slots.data();
  }
  return reinterpret_cast<PyObject*>(definition);
}
