"""The methods of `lazytpu.ir.builder.Builder`, by the families of ops."""
