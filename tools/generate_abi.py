"""Write what is generated from the ABI table: wit/, the C header of guest-sdk/ and the tables of docs/abi.md.

``--check`` writes nothing and fails if a file differs.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

from tensorwasm.guest.imports import abi, interfaces

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs" / "abi.md"
GLUE = "\0"  # stands for a space where no line may break
NOTICE = "Made by tools/generate_abi.py from the tables in src/tensorwasm/guest/imports. Do not edit."


def main() -> int:
    """Write or check every file; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    check = parser.parse_args().check
    drifted = [path for path, text in outputs() if not write_or_compare(path, text, check=check)]
    for path in drifted:
        print(f"{path.relative_to(ROOT)} is out of date: run make docs", file=sys.stderr)
    return 1 if drifted else 0


def outputs() -> Iterator[tuple[Path, str]]:
    """Yield every file and its text."""
    for interface in interfaces.INTERFACES:
        yield ROOT / "wit" / wit_folder(interface) / "world.wit", render_wit(interface)
    yield ROOT / "guest-sdk" / "include" / "tensorwasm.h", render_header()
    yield DOCS, fill_tables(DOCS.read_text(encoding="utf-8"))


def newest() -> tuple[interfaces.Interface, ...]:
    """Return the newest version of each interface."""
    first: dict[str, interfaces.Interface] = {}
    for interface in interfaces.INTERFACES:
        first.setdefault(interface.package, interface)
    return tuple(first.values())


def wit_folder(interface: interfaces.Interface) -> str:
    """Return the folder of a WIT package: the name of an older version's folder ends with the version."""
    name = interface.package.partition(":")[2]
    return name if interface in newest() else f"{name}-{interface.version}"


def write_or_compare(path: Path, text: str, *, check: bool) -> bool:
    """Write a file's text, or with ``check`` compare it; return whether the file had it before."""
    current = path.read_text(encoding="utf-8") if path.exists() else ""
    if current == text:
        return True
    if check:
        sys.stderr.writelines(difflib.unified_diff(current.splitlines(True), text.splitlines(True), str(path), "made"))
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")
    return True


# --------------------------------------------------------------------------------------------------------- WIT


def render_wit(interface: interfaces.Interface) -> str:
    """Return a WIT package: the interface, and the world that imports it."""
    lines = [f"// {NOTICE}", f"package {interface.package}@{interface.version};", ""]
    lines += [*comment(interface.doc, "///", ""), "interface host {"]
    lines += [textwrap.indent(declaration, "    ") for declaration in interface.types]
    for function in interface.functions:
        if function.wit is not None:
            name, signature = function.wit
            lines += ["", *comment(function.doc, "///", "    "), f"    {name}: {signature};"]
    lines += ["}", "", f"world {interface.world} {{", "    import host;", "}", ""]
    return "\n".join(lines).replace("{\n\n", "{\n")


# ---------------------------------------------------------------------------------------------------- C header


def render_header() -> str:
    """Return guest-sdk/include/tensorwasm.h."""
    parts = [HEADER_TOP, *c_enums(), c_limits(), *map(c_functions, newest())]
    return "\n".join([*parts, c_arguments(), HEADER_BOTTOM])


def c_enums() -> Iterator[str]:
    """Yield the enumerations of codes and tags."""
    yield c_enum("What a function of wasi:cuda answers instead of a result.", "TW_ERROR", abi.CODE_DOCS)
    yield c_enum("What a function of wasi:tensor answers instead of a result.", "TW_STREAM", abi.STREAM_CODE_DOCS)
    verdicts = {
        abi.YieldVerdict.CONTINUE: "Go on.",
        abi.YieldVerdict.DEADLINE_NEAR: "Come to an end.",
        abi.YieldVerdict.STOP: "Stop.",
    }
    yield c_enum("What tw_yield advises.", "TW_YIELD", verdicts)
    yield c_enum("What wasi_cuda_device_attribute can be asked.", "TW_DEVICE", abi.DEVICE_ATTRIBUTE_DOCS)
    rows = [f"    TW_ARG_{tag.name.upper()} = 0x{tag.tag:02x}, // {tag.doc}" for tag in abi.ARG_TAGS]
    yield "\n".join(["// The first byte of an argument record.", "enum {", *rows, "};", ""])


def c_enum(doc: str, prefix: str, docs: dict) -> str:
    """Return one enumeration."""
    rows = [f"    {prefix}_{code.name} = {int(code)}, // {text}" for code, text in docs.items()]
    return "\n".join([f"// {doc}", "enum {", *rows, "};", ""])


def c_limits() -> str:
    """Return the limits as macros."""
    rows = [f"#define TW_{limit.name} UINT64_C({limit.value}) // {measure(limit)}{limit.doc}" for limit in abi.LIMITS]
    return "\n".join(["// Limits.", *rows, ""])


def measure(limit: abi.Limit) -> str:
    """Return the unit that a limit counts, empty for things."""
    return "" if limit.unit == "count" else f"{limit.unit} of "


def c_functions(interface: interfaces.Interface) -> str:
    """Return the prototypes of an interface."""
    lines = [f"// {interface.modules[0]}", f"// {interface.doc}", ""]
    for function in interface.functions:
        params = ", ".join(c_parameter(param).replace(" ", GLUE) for param in function.params) or "void"
        prototype = textwrap.wrap(f"{function.c_head}({params});", 100, subsequent_indent="    ")
        prototype = [line.replace(GLUE, " ") for line in prototype]
        lines += comment(function.doc, "//", "")
        lines += [f'TW_IMPORT("{interface.modules[0]}", "{function.core_name}")', *prototype, ""]
    return "\n".join(lines)


def c_parameter(param: interfaces.Param) -> str:
    """Return a parameter as C declares it."""
    return param.c_type + ("" if param.c_type.endswith("*") else " ") + param.name


def c_arguments() -> str:
    """Return the builder of argument records."""
    rows = [C_NUMBER.format(name=name, c_type=c_type, tag=name.upper(), bits=bits) for name, c_type, bits in C_NUMBERS]
    return C_ARGUMENTS_TOP + "".join(rows) + C_ARGUMENTS_BOTTOM


C_NUMBERS = (
    ("i32", "int32_t", "(uint32_t)value, 4"),
    ("i64", "int64_t", "(uint64_t)value, 8"),
    ("u32", "uint32_t", "value, 4"),
    ("u64", "uint64_t", "value, 8"),
)

HEADER_TOP = f"""\
// The imports of TensorWasm for guests in C and C++. Needs no C library.
// {NOTICE}
#ifndef TENSORWASM_H
#define TENSORWASM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

#define TW_IMPORT(module, name) __attribute__((import_module(module), import_name(name))) extern
"""

HEADER_BOTTOM = """\
#ifdef __cplusplus
}
#endif

#endif
"""

C_ARGUMENTS_TOP = """\
// Kernel arguments, in the order of the kernel's parameters:
//
//     tw_args args;
//     tw_args_clear(&args);
//     tw_arg_ptr(&args, numbers, sizeof numbers);
//     tw_arg_u32(&args, count);
//     tw_launch(kernel, (tw_dim3){blocks, 1, 1}, (tw_dim3){256, 1, 1}, 0, &args);
//
// A builder that overflows launches nothing: tw_launch answers TW_ERROR_KERNEL_ARGS_UNSUPPORTED.
typedef struct {
    uint32_t len;
    uint32_t overflow;
    uint8_t bytes[TW_MAX_KERNEL_ARGS_BYTES];
} tw_args;

typedef struct {
    uint32_t x, y, z;
} tw_dim3;

static inline void tw_args_clear(tw_args *args)
{
    args->len = 0;
    args->overflow = 0;
}

static inline void tw_args_put(tw_args *args, uint64_t value, uint32_t bytes)
{
    if (args->overflow || bytes > TW_MAX_KERNEL_ARGS_BYTES - args->len) {
        args->overflow = 1;
        return;
    }
    for (uint32_t i = 0; i < bytes; i++)
        args->bytes[args->len++] = (uint8_t)(value >> (8 * i));
}

"""

C_NUMBER = """\
static inline void tw_arg_{name}(tw_args *args, {c_type} value)
{{
    tw_args_put(args, TW_ARG_{tag}, 1);
    tw_args_put(args, {bits});
}}

"""

C_ARGUMENTS_BOTTOM = """\
static inline void tw_arg_f32(tw_args *args, float value)
{
    union {
        float number;
        uint32_t bits;
    } both;
    both.number = value;
    tw_args_put(args, TW_ARG_F32, 1);
    tw_args_put(args, both.bits, 4);
}

static inline void tw_arg_f64(tw_args *args, double value)
{
    union {
        double number;
        uint64_t bits;
    } both;
    both.number = value;
    tw_args_put(args, TW_ARG_F64, 1);
    tw_args_put(args, both.bits, 8);
}

// A window of this program's memory.
static inline void tw_arg_ptr(tw_args *args, const void *start, uint32_t bytes)
{
    tw_args_put(args, TW_ARG_PTR, 1);
    tw_args_put(args, (uint32_t)(uintptr_t)start, 4);
    tw_args_put(args, bytes, 4);
}

// A place in device memory.
static inline void tw_arg_buffer(tw_args *args, int64_t handle, uint64_t offset)
{
    tw_args_put(args, TW_ARG_BUFFER, 1);
    tw_args_put(args, (uint64_t)handle, 8);
    tw_args_put(args, offset, 8);
}

static inline int32_t tw_launch(int64_t kernel, tw_dim3 grid, tw_dim3 block, uint32_t shared_mem, const tw_args *args)
{
    if (args->overflow)
        return TW_ERROR_KERNEL_ARGS_UNSUPPORTED;
    return wasi_cuda_launch(kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared_mem, args->bytes,
                            args->len);
}

// The same, but it only starts the kernel. The memory of its windows is the device's until the stream has drained.
static inline int32_t tw_launch_async(int64_t kernel, tw_dim3 grid, tw_dim3 block, uint32_t shared_mem,
                                      const tw_args *args, int64_t stream)
{
    if (args->overflow)
        return TW_ERROR_KERNEL_ARGS_UNSUPPORTED;
    return wasi_cuda_launch_async(kernel, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared_mem, args->bytes,
                                  args->len, stream);
}

// Device memory by its whole handle and size.
static inline int64_t tw_alloc(uint64_t bytes)
{
    return wasi_cuda_alloc((uint32_t)bytes, (uint32_t)(bytes >> 32));
}

static inline int32_t tw_free(int64_t handle)
{
    return wasi_cuda_free((uint32_t)handle, (uint32_t)((uint64_t)handle >> 32));
}

static inline int32_t tw_write(int64_t handle, const void *src, uint32_t bytes)
{
    return wasi_cuda_memcpy_h2d((uint32_t)handle, (uint32_t)((uint64_t)handle >> 32), src, bytes);
}

static inline int32_t tw_read(void *dst, int64_t handle, uint32_t bytes)
{
    return wasi_cuda_memcpy_d2h(dst, (uint32_t)handle, (uint32_t)((uint64_t)handle >> 32), bytes);
}
"""


# -------------------------------------------------------------------------------------------------------- docs


def fill_tables(page: str) -> str:
    """Put the tables between the page's markers; the text around them is written by hand."""

    def table(match: re.Match[str]) -> str:
        return f"{match['open']}\n\n{TABLES[match['name']]()}\n{match['close']}"

    return re.sub(
        r"(?P<open><!-- table (?P<name>[\w:.-]+) -->)\n.*?(?P<close><!-- end -->)", table, page, flags=re.DOTALL
    )


def markdown(header: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    """Return a table."""
    return "".join(f"| {' | '.join(row)} |\n" for row in (header, ("---",) * len(header), *rows))


def functions_table(functions: tuple[interfaces.Function, ...]) -> str:
    """Return functions of an interface."""
    return markdown(
        ("Import", "Parameters", "Result", "WIT", "What it does", "Codes"),
        (
            (
                f"`{function.core_name}`",
                ", ".join(f"{param.name}: {param.type}" for param in function.params) or "none",
                function.result,
                f"`{function.wit[0]}`" if function.wit else "part of `last-error`",
                function.doc,
                ", ".join(str(int(code)) for code in function.errors) or "none",
            )
            for function in functions
        ),
    )


def wit_name(code: abi.Code | abi.StreamCode) -> str:
    """Return a code's name in WIT."""
    return code.name.lower().replace("_", "-")


def codes_table(docs: dict) -> str:
    """Return the codes of an interface."""
    rows = ((str(int(code)), f"`{code.name.lower()}`", f"`{wit_name(code)}`", text) for code, text in docs.items())
    return markdown(("Code", "Name", "WIT", "Meaning"), rows)


def limits_table() -> str:
    """Return the limits."""
    rows = (
        (
            f"`{limit.name}`",
            f"{limit.value:,}",
            measure(limit) + limit.doc,
            str(int(limit.answer)) if limit.answer else "cut short",
        )
        for limit in abi.LIMITS
    )
    return markdown(("Limit", "Largest allowed", "Of", "Beyond it"), rows)


def attributes_table() -> str:
    """Return the attributes of devices."""
    rows = (
        (str(int(attribute)), f"`{attribute.name.lower()}`", text)
        for attribute, text in abi.DEVICE_ATTRIBUTE_DOCS.items()
    )
    return markdown(("Attribute", "Name", "Answer"), rows)


def tags_table() -> str:
    """Return the argument records."""
    rows = (
        (f"`0x{tag.tag:02x}`", f"`{tag.name}`", str(tag.value_bytes), str(tag.param_bytes), tag.doc)
        for tag in abi.ARG_TAGS
    )
    return markdown(("Tag", "Name", "Value bytes", "Parameter bytes", "Value"), rows)


def modules_table() -> str:
    """Return the interfaces and their import modules."""
    rows = (
        (f"`{i.package}@{i.version}`", ", ".join(f"`{module}`" for module in i.modules), f"`{i.world}`", i.doc)
        for i in interfaces.INTERFACES
    )
    return markdown(("WIT package", "Import modules", "World", "For"), rows)


OLDER = len(interfaces.CUDA_0_2.functions)

TABLES: dict[str, Callable[[], str]] = {
    "modules": modules_table,
    "cuda": lambda: functions_table(interfaces.CUDA.functions[:OLDER]),
    "cuda-0.3": lambda: functions_table(interfaces.CUDA.functions[OLDER:]),
    "tensor": lambda: functions_table(interfaces.TENSOR.functions),
    "scheduler": lambda: functions_table(interfaces.SCHEDULER.functions),
    "attributes": attributes_table,
    "codes": lambda: codes_table(abi.CODE_DOCS),
    "stream-codes": lambda: codes_table(abi.STREAM_CODE_DOCS),
    "limits": limits_table,
    "tags": tags_table,
}


def comment(text: str, mark: str, indent: str) -> list[str]:
    """Return text as comment lines."""
    return [f"{indent}{mark} {line}" for line in textwrap.wrap(text, 100)]


if __name__ == "__main__":
    sys.exit(main())
